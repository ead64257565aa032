// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/codec/concept.hpp>
#include <peerbus/moe/row_block.hpp>
#include <peerbus/moe/token_index.hpp>

namespace peerbus::moe {

/// The rows that one dispatch brought to this rank, in the rank-major layout. Each token arrives
/// once, with the slots of its experts at this rank. The caller must fill `output(i)` with the sum
/// over these experts of weight times the expert's output for row `i`. Combine adds the outputs of
/// the ranks. A view that is cheap to copy. It is valid as long as its rows are (`row_block`).
template <token_codec Codec>
class received_tokens : public row_block<Codec>, public token_index<Codec> {
 public:
  /// Makes the view of `rows`, with their index.
  received_tokens(const row_block<Codec>& rows, const token_index<Codec>& index) noexcept
      : row_block<Codec>{rows}, token_index<Codec>{index} {}
};

}  // namespace peerbus::moe
