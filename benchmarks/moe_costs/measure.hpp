// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>

#include "moe_costs/fit.hpp"
#include "support/samples.hpp"
#include "support/statistics.hpp"
#include "support/timed.hpp"

namespace moe_costs {

/// The size of a dispatch, and how often it is timed.
struct load {
  std::size_t tokens;
  std::size_t hidden;
  std::size_t top_k;
  std::size_t experts;
  std::size_t iterations;
};

/// The tokens of a rank and the experts that they go to, evenly drawn.
struct batch {
  std::vector<peerbus::bf16> tokens;
  std::vector<std::int32_t> experts;
  std::vector<float> weights;

  batch(const load& size, std::size_t rank)
      : tokens(size.tokens * size.hidden), weights(size.tokens * size.top_k, 1.0F) {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = peerbus::bf16{static_cast<float>((i * 7 + rank) % 255) - 127.0F};
    std::mt19937_64 random{rank};
    std::vector<std::int32_t> all(size.experts);
    for (std::size_t e = 0; e < all.size(); ++e) all[e] = static_cast<std::int32_t>(e);
    for (std::size_t t = 0; t < size.tokens; ++t) {
      std::shuffle(all.begin(), all.end(), random);
      experts.insert(experts.end(), all.begin(),
                     all.begin() + static_cast<std::ptrdiff_t>(size.top_k));
    }
  }
};

/// Reads each cache line of all rows and writes all outputs, as experts do. Otherwise rows would
/// stay in the caches of their senders, and the next dispatch would find them there. Returns: a
/// number that depends on all that was read, in order.
template <class Received>
std::uint64_t use(const Received& received) {
  std::uint64_t sum = 0;
  for (std::size_t e = 0; e < received.local_experts(); ++e)
    for (const peerbus::rank_id source : peerbus::all_ranks{received.ranks()}) {
      const auto block = received.rows_from(e, source);
      const auto bytes = std::as_bytes(block.rows());
      for (std::size_t i = 0; i < bytes.size(); i += peerbus::cache_line_bytes)
        sum = sum * 31 + static_cast<std::uint64_t>(bytes[i]);
      std::ranges::fill(block.outputs(), peerbus::bf16{1.0F});
    }
  return sum;
}

/// Times dispatches of one size by both protocols, in turns. Collective.
/// Returns, on rank 0: the medians of the slowest rank.
template <class Transport>
point measure(peerbus::communicator<Transport>& comm, const load& size) {
  using peerbus::moe::dispatch_protocol;
  using exchange =
      peerbus::moe::exchange<Transport, peerbus::codec::int8_per_token, peerbus::moe::automatic>;
  const auto made = [&](dispatch_protocol protocol) {
    return exchange{comm,
                    {.experts = size.experts,
                     .hidden = size.hidden,
                     .top_k = size.top_k,
                     .max_tokens = size.tokens,
                     .protocol = protocol}};
  };
  std::array both{made(dispatch_protocol::counts_first), made(dispatch_protocol::one_phase)};
  const batch mine{size, comm.rank().index()};
  std::vector<peerbus::bf16> out(mine.tokens.size());
  bench::sample_store<Transport> samples{comm, both.size(), size.iterations};
  // The first fifth only takes memory and fills caches.
  const std::size_t warmup = std::max<std::size_t>(size.iterations / 5, 1);
  for (std::size_t i = 0; i < warmup + size.iterations; ++i) {
    std::array<std::uint64_t, 2> found{};
    for (std::size_t turn = 0; turn < both.size(); ++turn) {
      const std::size_t which = (turn + i) % both.size();
      exchange& moe = both[which];
      std::optional<typename exchange::received_type> received;
      const double spent = bench::timed(
          comm, [&] { received.emplace(moe.dispatch(mine.tokens, {mine.experts, mine.weights})); });
      if (i >= warmup) samples.set(which, i - warmup, spent);
      found[which] = use(*received);
      moe.combine(*received, out);
    }
    if (found[0] != found[1])
      throw peerbus::error{peerbus::errc::mismatch, "the protocols brought different rows"};
  }
  const auto& map = both[0].map();
  point at{comm.size(), static_cast<double>(size.tokens * map.copies),
           static_cast<double>(map.format.row_bytes + map.format.scale_bytes) / 1024};
  const bench::sample_table slowest = samples.slowest(size.iterations);
  if (comm.rank().index() == 0) {
    at.counts_first_us = bench::median(slowest[0]);
    at.one_phase_us = bench::median(slowest[1]);
  }
  return at;
}

}  // namespace moe_costs
