// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <span>

#include <peerbus/core/bf16.hpp>

namespace peerbus::moe {

/// What a combine adds up besides the outputs of the copies, or instead of what dispatch was told:
/// memory of the caller, read until the call that gives `out` has returned. Whatever is empty
/// changes nothing.
///
/// out[t] = bias[0][t] + bias[1][t] + the sum over t's copies, in this order and in f32, rounded to
/// bf16 once.
struct combine_terms {
  /// [tokens, top_k], in place of the weights that dispatch was given. Expert-major layouts only.
  std::span<const float> weights{};
  /// Each [tokens, hidden].
  std::array<std::span<const bf16>, 2> bias{};
  /// [tokens, top_k] places of rows of `hidden` values, or null: the outputs of slots that were
  /// sent nowhere (-1), such as those of experts that every home rank evaluates for itself. They
  /// join the sum where their slot does. Expert-major layouts only, and only with `weights`.
  std::span<const bf16* const> local{};
};

}  // namespace peerbus::moe
