// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <peerbus/core/bf16.hpp>

namespace moe_text {

/// A small mixture of experts whose numbers all follow from a seed. Expert e turns x into down[e] *
/// silu(up[e] * x).
struct model {
  static constexpr std::size_t inner = 32;

  model(std::size_t experts, std::size_t hidden);

  /// Writes the vector of a word at its position in the text. Most of it depends on the word, so
  /// that a frequent word loads the same experts again and again. A small part depends on the
  /// position, so that all vectors differ and a row in a wrong place is detected.
  void embed(std::string_view word, std::size_t position, std::span<peerbus::bf16> token) const;

  /// Writes the `ids.size()` experts with the largest logits of the gate, best first, and the
  /// softmax of their logits.
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

/// Computes the output of an expert for one row in f32, and rounds it to bf16 at the end.
void apply_expert(const model& m, std::size_t expert, std::span<const float> row,
                  std::span<peerbus::bf16> output);

}  // namespace moe_text
