// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/concept.hpp>

#include "support/process.hpp"
#include "support/ranks.hpp"

namespace test {

/// One dispatch and combine of a token that goes to an expert of each rank.
template <peerbus::transport Transport>
void do_a_round(peerbus::communicator<Transport>& comm) {
  const std::size_t ranks = comm.size();
  peerbus::moe::exchange moe{comm,
                             {.experts = ranks, .hidden = 64, .top_k = ranks, .max_tokens = 4},
                             peerbus::codec::int8_per_token{}};
  std::vector<peerbus::bf16> tokens(64, peerbus::bf16{1.0F});
  std::vector<std::int32_t> experts(ranks);
  for (std::size_t e = 0; e < ranks; ++e) experts[e] = static_cast<std::int32_t>(e);
  const std::vector<float> weights(ranks, 1.0F);
  std::vector<peerbus::bf16> out(64);
  auto rows = moe.dispatch(tokens, {experts, weights});
  for (auto& expert : rows.experts())
    for (peerbus::bf16& value : expert.outputs()) value = peerbus::bf16{2.0F};
  moe.combine(rows, out);
  expect_equal(static_cast<float>(out[63]), 2.0F * static_cast<float>(ranks), "the sum");
}

/// Goes on after rank 1 has forked a child, in which all objects are destroyed: by a round, and by
/// a window made before. Collective; returns in the child at once.
template <peerbus::transport Transport>
void go_on_beside_a_child(peerbus::communicator<Transport>& comm) {
  using peerbus::rank_id;
  auto win = comm.make_window(64, 1);
  comm.barrier();
  if (comm.rank() == rank_id{1} && is_forked_child()) return;
  do_a_round(comm);
  const std::size_t size = comm.size();
  const rank_id next{(comm.rank().index() + 1) % size};
  const rank_id before{(comm.rank().index() + size - 1) % size};
  constexpr peerbus::signal_id first{0};
  peerbus::check(win.signal(next, first, 1), "signal");
  peerbus::check(win.wait(first, 1, comm.default_deadline(), before), "wait");
  comm.barrier();
}

}  // namespace test
