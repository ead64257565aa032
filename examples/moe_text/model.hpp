// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <peerbus/core/bf16.hpp>

namespace moe_text {

/// A small mixture of experts whose every number follows from a seed. Expert e turns x into
/// down[e] * silu(up[e] * x).
struct model {
  static constexpr std::size_t inner = 32;

  model(std::size_t experts, std::size_t hidden);

  /// The vector of a word at its position in the text: mostly the word, so that a frequent word
  /// loads the same experts again and again, and a little of the position, so that no two vectors
  /// are alike and a row in the wrong place is seen.
  void embed(std::string_view word, std::size_t position, std::span<peerbus::bf16> token) const;

  /// The `ids.size()` experts that the gate likes best, best first, and their softmax.
  void route(std::span<const peerbus::bf16> token, std::span<std::int32_t> ids,
             std::span<float> weights) const;

  [[nodiscard]] std::span<const float> up_of(std::size_t expert) const {
    return std::span{up}.subspan(expert * hidden * inner, hidden * inner);
  }
  [[nodiscard]] std::span<const float> down_of(std::size_t expert) const {
    return std::span{down}.subspan(expert * hidden * inner, hidden * inner);
  }

  std::size_t experts;
  std::size_t hidden;
  std::vector<float> gate;  ///< [experts][hidden]
  std::vector<float> up;    ///< [experts][hidden][inner]
  std::vector<float> down;  ///< [experts][inner][hidden]
};

/// One row through one expert, in f32, rounded to bf16 at the end.
void apply_expert(const model& m, std::size_t expert, std::span<const float> row,
                  std::span<peerbus::bf16> output);

}  // namespace moe_text
