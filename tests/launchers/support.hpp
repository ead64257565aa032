// SPDX-License-Identifier: MIT
#pragma once

#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iostream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/silent_children.hpp"

/// The checks of programs that an engine starts, once for each rank. A check that fails ends the
/// rank, and with it the job.
namespace test {

using peerbus::bootstrap;
using peerbus::deadline;
using peerbus::errc;

inline deadline patience() { return deadline::after(std::chrono::seconds{60}); }

inline void require(bool holds, std::string_view what) {
  if (!holds) throw std::runtime_error{std::string{"expected: "}.append(what)};
}

/// Checks that `f` throws an `error` with `code` and all of `parts` in its text.
template <class F>
void require_error(errc code, const std::vector<std::string>& parts, F f) {
  try {
    f();
  } catch (const peerbus::error& caught) {
    require(caught.code() == code, std::string{"another code than of: "} + caught.what());
    for (const auto& part : parts)
      require(std::string_view{caught.what()}.find(part) != std::string_view::npos,
              part + " in: " + caught.what());
    return;
  }
  throw std::runtime_error{"expected an error, got none"};
}

/// Checks that `boot` has the place asked for and connects exactly the ranks that say `said`.
inline void check_group(bootstrap& boot, std::size_t rank, std::size_t size,
                        const std::string& said) {
  require(boot.rank() == peerbus::rank_id{rank} && boot.size() == size, "the place asked for");
  const auto text = std::as_bytes(std::span{said});
  const auto given = boot.allgather({{text.begin(), text.end()}, {}}, patience(), "words");
  for (const auto& of_rank : given)
    require(of_rank.bytes.size() == said.size() &&
                std::memcmp(of_rank.bytes.data(), said.data(), said.size()) == 0,
            "the same word of all ranks");
}

/// Sends tokens to two experts each through `unified_bus`. Expert e multiplies rows by e + 1, so
/// that a row that reaches another expert, or comes home as another token, is found.
inline void check_exchange(bootstrap& boot) {
  constexpr std::size_t count = 5;
  constexpr std::size_t hidden = 64;
  peerbus::communicator<peerbus::unified_bus> comm{peerbus::unified_bus{boot}};
  const std::size_t experts = 2 * boot.size();
  peerbus::moe::exchange moe{
      comm,
      {.experts = experts, .hidden = hidden, .top_k = 2, .max_tokens = count},
      peerbus::codec::bf16{}};
  std::vector<peerbus::bf16> tokens(count * hidden);
  std::vector<std::int32_t> ids(count * 2);
  const std::vector<float> weights(count * 2, 1);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = peerbus::bf16{static_cast<float>(i % 7 + boot.rank().index())};
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>((3 * (i / 2) + i % 2 + boot.rank().index()) % experts);

  auto received = moe.dispatch(tokens, {ids, weights});
  std::vector<float> row(hidden);
  for (auto& expert : received.experts())
    for (std::size_t i = 0; i < expert.count(); ++i) {
      expert.decode(i, row);
      for (std::size_t c = 0; c < hidden; ++c)
        expert.output(i)[c] = peerbus::bf16{row[c] * static_cast<float>(expert.id() + 1)};
    }
  std::vector<peerbus::bf16> out(tokens.size());
  moe.combine(received, out);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto* const of_token = &ids[i / hidden * 2];
    const auto factor = static_cast<float>(of_token[0] + of_token[1] + 2);
    require(static_cast<float>(out[i]) == static_cast<float>(tokens[i]) * factor,
            "the sum of both experts' outputs");
  }
}

/// Lets each rank fork a child, which speaks for nobody and ends without a call of the engine.
inline void check_children(std::unique_ptr<bootstrap> boot) {
  if (!is_silent_child(*boot)) return;
  boot.reset();
  ::_exit(0);
}

/// Runs `f` as the main function of a rank, which ends with the process that started it. Prints
/// "all checks passed" if `f` returns. Returns: the exit status.
template <class F>
int run_rank(F f) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(100);
  try {
    f();
    std::cout << "all checks passed" << std::endl;
    return 0;
  } catch (const std::exception& caught) {
    std::cerr << caught.what() << std::endl;
    return 1;
  }
}

}  // namespace test
