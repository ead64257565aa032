// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/plan/recv_plan.hpp>
#include <peerbus/moe/row_run.hpp>
#include <peerbus/moe/token_index.hpp>

namespace peerbus::moe {

/// The rows that one dispatch brought to this rank, in the layouts `slots` and `automatic_by_rank`.
/// Each token arrives once, with the slots of its experts at this rank. The rows of a source rank
/// lie together. As for `received_tokens`, the caller must fill the output of each row with the sum
/// over these experts, and combine adds the outputs of the ranks. A view that is cheap to copy. It
/// is valid as long as its rows are (`row_run`).
///
/// Rows have two numberings: `rows_from(source)` numbers the rows of one source rank from 0.
/// `all()` and the functions of `token_index` number all rows of this rank, so that the rows of
/// `source` begin at `rows_from(source).first_row()`. With `slots` this is source x max_tokens.
template <token_codec Codec>
class received_token_slots : public token_index<Codec> {
 public:
  /// The type in which the codec stores a row.
  using element = typename Codec::element;

  /// Makes the view.
  received_token_slots(const token_index<Codec>& index, Codec codec, row_memory memory,
                       const recv_plan& arriving) noexcept
      : token_index<Codec>{index}, codec_{codec}, memory_{memory}, arriving_{&arriving} {}

  /// Returns the number of ranks.
  [[nodiscard]] std::size_t ranks() const noexcept { return arriving_->ranks(); }
  /// Returns the rows that came from `source`.
  [[nodiscard]] row_run<Codec> rows_from(rank_id source) const noexcept {
    return run(arriving_->from(0, source));
  }
  /// Returns the number of rows from each rank: [ranks].
  [[nodiscard]] std::span<const std::uint32_t> counts() const noexcept {
    return arriving_->counts();
  }
  /// Returns the number of rows that arrived.
  [[nodiscard]] std::size_t rows() const noexcept { return arriving_->rows(); }
  /// Returns all rows of this rank. With `slots`, ranks x max_tokens, also the slots without a row;
  /// with `automatic_by_rank`, either that or exactly the rows that arrived.
  [[nodiscard]] row_run<Codec> all() const noexcept { return run(arriving_->slots()); }

 private:
  [[nodiscard]] row_run<Codec> run(std::span<const std::uint32_t, 2> bounds) const noexcept {
    return {codec_, memory_, &bounds[0], &bounds[1]};
  }

  [[no_unique_address]] Codec codec_;
  row_memory memory_;
  const recv_plan* arriving_;
};

}  // namespace peerbus::moe
