// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <peerbus/core/bf16.hpp>

namespace micro {

/// The size of the rows that are dispatched: that of large models.
inline constexpr std::size_t hidden = 7168;
inline constexpr std::size_t top_k = 8;

/// A rank's tokens and where they go: 8 of `experts` experts each, a power of 2 from 8 on.
struct batch {
  std::vector<peerbus::bf16> tokens;  ///< [count, hidden]
  std::vector<std::int32_t> ids;      ///< [count, top_k]
  std::vector<float> weights;         ///< [count, top_k]

  batch(std::size_t count, std::size_t rank, std::size_t experts)
      : tokens(count * hidden), ids(count * top_k), weights(count * top_k, 0.125F) {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = peerbus::bf16{static_cast<float>((i * 7 + rank) % 255) - 127.0F};
    // Steps that share no divisor with the number of experts: distinct within a token, even.
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<std::int32_t>((i * 37 + rank * 101) % experts);
  }
};

/// The sums that `exchange` gives for `mine`, of outputs that tell rows and experts apart.
template <class Exchange>
std::vector<peerbus::bf16> sums_by(Exchange& exchange, const batch& mine) {
  std::vector<peerbus::bf16> out(mine.tokens.size());
  auto got = exchange.dispatch(mine.tokens, {mine.ids, mine.weights});
  for (auto& expert : got.experts())
    for (std::size_t row = 0; row < expert.count(); ++row)
      std::ranges::fill(expert.output(row),
                        peerbus::bf16{static_cast<float>(expert.id() + 1) *
                                      static_cast<float>(expert.origin(row).token + 1)});
  exchange.combine(got, out);
  return out;
}

/// Returns whether `exchanges` give `expected`, and no sum is zero.
template <class... Exchanges>
bool all_sum_to(const std::vector<peerbus::bf16>& expected, const batch& mine,
                Exchanges&... exchanges) {
  return (... && (sums_by(exchanges, mine) == expected)) &&
         std::ranges::count(expected, peerbus::bf16{}) == 0;
}

}  // namespace micro
