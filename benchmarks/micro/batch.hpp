// SPDX-License-Identifier: MIT
#pragma once

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

}  // namespace micro
