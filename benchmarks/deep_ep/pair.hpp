// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "deep_ep/options.hpp"
#include "ep_bench/gate.hpp"
#include "support/findings.hpp"
#include "support/pages.hpp"
#include "support/samples.hpp"
#include "support/timed.hpp"

namespace deep_ep_bench {

using transport = peerbus::unified_bus;
using peerbus::bf16;

/// One rank's tokens, and the routing that both sides are given.
struct rank_input {
  rank_input(const options& chosen, std::size_t rank)
      : count{chosen.payload.tokens},
        hidden{chosen.payload.hidden},
        top_k{chosen.payload.top_k},
        tokens{count * hidden},
        weights{} {
    const auto choice = ep_bench::gate{chosen.payload}.choose(rank);
    experts.assign(choice.experts.begin(), choice.experts.end());
    weights = choice.weights;
    // Quarters of -2 to 2, exact in bf16, and different for every token and channel.
    for (std::size_t i = 0; i < tokens.all().size(); ++i) {
      const std::uint64_t mixed = (i + rank * 1'000'003 + 1) * 0x9e3779b97f4a7c15U;
      tokens.all()[i] = bf16{static_cast<float>(mixed >> 59U) * 0.25F - 2.0F};
    }
  }

  std::size_t count;
  std::size_t hidden;
  std::size_t top_k;
  bench::pages<bf16> tokens;          ///< [count, hidden]
  std::vector<std::int64_t> experts;  ///< [count, top_k]
  std::vector<float> weights;         ///< [count, top_k]
};

/// Which of the two is timed.
enum class side : std::size_t { native = 0, adapter = 1 };
inline constexpr std::array sides{side::native, side::adapter};
inline constexpr std::array<const char*, 2> side_names{"peerbus's own calls", "deep_ep"};

/// What a run found out. Times, in microseconds and of the slowest rank, are there on rank 0 only.
struct outcome {
  std::string wrong;  ///< what the check found; empty if all was right
  std::array<std::vector<double>, 2> dispatch;
  std::array<std::vector<double>, 2> combine;
  std::vector<double>
      second_combine;  ///< of DeepEP's names, by the same handle; empty if not asked
};

/// Times both sides in turns, each iteration the native calls first or second by turns, so that
/// what disturbs one disturbs the other. `Subject` has, for a side: `dispatch(side)`,
/// `run_experts(side)`, `combine(side)` and `wrong(side)`, which says what is wrong with what the
/// last combine gave.
template <class Subject>
outcome measure(peerbus::communicator<transport>& comm, const options& chosen, Subject& subject,
                const rank_input& input) {
  const std::size_t iterations = chosen.payload.iterations;
  bench::sample_store<transport> samples{comm, 5, iterations};
  bench::shared_findings<transport> findings{comm};
  const auto iterate = [&](side which, std::size_t i, bool keep) {
    input.tokens.recall();
    const double there = bench::timed(comm, [&] { subject.dispatch(which); });
    subject.run_experts(which);
    const double back = bench::timed(comm, [&] { subject.combine(which); });
    const bool again = chosen.twice && which == side::adapter;
    const double second = again ? bench::timed(comm, [&] { subject.combine(which); }) : 0;
    if (!keep) return;
    samples.set(2 * static_cast<std::size_t>(which), i, there);
    samples.set(2 * static_cast<std::size_t>(which) + 1, i, back);
    if (again) samples.set(4, i, second);
  };
  const auto check = [&] {
    std::string found;
    for (const side which : sides) {
      iterate(which, 0, false);
      if (const std::string text = subject.wrong(which); found.empty() && !text.empty())
        found = std::string{side_names[static_cast<std::size_t>(which)]} + ": " + text;
    }
    return findings.first_of_all(found);
  };
  const std::vector<side> timed_sides =
      chosen.alone ? std::vector{side::adapter} : std::vector(sides.begin(), sides.end());
  outcome result;
  result.wrong = check();
  if (!result.wrong.empty()) return result;
  for (std::size_t i = 0; i < chosen.payload.warmup; ++i)
    for (const side which : timed_sides) iterate(which, 0, false);
  for (std::size_t i = 0; i < iterations; ++i)
    for (std::size_t s = 0; s < timed_sides.size(); ++s)
      iterate(timed_sides[(i + s) % timed_sides.size()], i, true);
  result.wrong = check();
  const auto slowest = samples.slowest(iterations);
  for (std::size_t s = 0; s < 2; ++s) {
    result.dispatch[s] = slowest[2 * s];
    result.combine[s] = slowest[2 * s + 1];
  }
  if (chosen.twice) result.second_combine = slowest[4];
  return result;
}

/// Compares bit by bit. Returns: the first difference, in words, or nothing.
inline std::string first_difference(std::span<const bf16> given, std::span<const bf16> expected,
                                    std::size_t hidden) {
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (given[i].bits != expected[i].bits)
      return peerbus::concat("token ", i / hidden, ", channel ", i % hidden, " is ",
                             static_cast<double>(static_cast<float>(given[i])), ", expected ",
                             static_cast<double>(static_cast<float>(expected[i])));
  return {};
}

}  // namespace deep_ep_bench
