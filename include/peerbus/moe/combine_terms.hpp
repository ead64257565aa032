// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <span>

#include <peerbus/core/bf16.hpp>

namespace peerbus::moe {

/// Optional inputs of a combine: other weights, biases, and outputs of local experts. Empty members
/// change nothing. The memory is the caller's, and it must not change until the call that is given
/// `out` has returned.
///
/// out[t] = bias[0][t] + bias[1][t] + the sum over the copies of token t. The terms are added in
/// this order, in f32, and the result is rounded to bf16 once.
struct combine_terms {
  /// Weights [tokens, top_k] that replace those of the dispatch. Expert-major layouts only.
  std::span<const float> weights{};
  /// Values to add to the result, each [tokens, hidden].
  std::array<std::span<const bf16>, 2> bias{};
  /// Outputs for slots that were not sent (-1): [tokens, top_k] pointers to `hidden` values each,
  /// or null. They serve experts that every home rank evaluates for its own tokens. An output is
  /// added at the position of its slot, times the weight of the slot in `weights`, which must be
  /// given. Expert-major layouts only.
  std::span<const bf16* const> local{};
  /// Outputs of this rank's experts for its own tokens that lie in the caller's memory: [tokens,
  /// copies] pointers to `hidden` values each, or null, where copies is `memory_map::copies` and
  /// the entry of a row is (token, slot) of its `origin`. Such an output is read where it lies, so
  /// that it need not be copied to the place of `row_block::output`. Not with relay.
  std::span<const bf16* const> own{};
};

}  // namespace peerbus::moe
