// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/batch_columns.hpp>
#include <peerbus/moe/plan/recv_plan.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/row_run.hpp>

namespace peerbus::moe {

/// The rows that one dispatch brought to this rank, in the layouts `expert_slots` and `automatic`.
/// The rows for a local expert from one rank lie together. With `expert_slots`, the rows for local
/// expert e from rank r begin at row (e x ranks + r) x max_tokens. With `automatic`, only
/// `rows_from(e, r).first_row()` tells where they begin. A view that is cheap to copy. It is valid
/// as long as its rows are (`row_run`).
template <token_codec Codec>
class received_slots {
 public:
  /// The type in which the codec stores a row.
  using element = typename Codec::element;

  /// Makes the view. `experts` has the number within the whole group of each local expert.
  received_slots(moe::ticket ticket, Codec codec, row_memory memory, const recv_plan& arriving,
                 std::span<const std::uint32_t> experts) noexcept
      : ticket_{ticket}, codec_{codec}, memory_{memory}, arriving_{&arriving}, experts_{experts} {}

  /// Returns the number of experts that this rank holds.
  [[nodiscard]] std::size_t local_experts() const noexcept { return experts_.size(); }
  /// Returns the number of ranks.
  [[nodiscard]] std::size_t ranks() const noexcept { return arriving_->ranks(); }
  /// Returns the number of local expert `e` within the whole group, as in `routing`.
  [[nodiscard]] std::size_t expert_id(std::size_t e) const noexcept { return experts_[e]; }
  /// Returns the rows for local expert `e` that came from `source`.
  [[nodiscard]] row_run<Codec> rows_from(std::size_t e, rank_id source) const noexcept {
    const auto bounds = arriving_->from(e, source);
    return {codec_, memory_, &bounds[0], &bounds[1]};
  }
  /// Returns the number of rows of each `rows_from`: [local experts, ranks].
  [[nodiscard]] std::span<const std::uint32_t> counts() const noexcept {
    return arriving_->counts();
  }
  /// Returns the number of rows that arrived for all local experts together.
  [[nodiscard]] std::size_t rows() const noexcept { return arriving_->rows(); }
  /// Returns the arrays that contain all rows and the data that travelled with them. They are
  /// writable. With `expert_slots` they are [local experts, ranks, max_tokens], also the slots
  /// without rows, for a grouped GEMM.
  [[nodiscard]] batch_columns<Codec> columns() const noexcept {
    return batch_columns<Codec>{memory_.set};
  }

  /// Returns the ticket of the dispatch.
  [[nodiscard]] moe::ticket ticket() const noexcept { return ticket_; }

 private:
  moe::ticket ticket_;
  [[no_unique_address]] Codec codec_;
  row_memory memory_;
  const recv_plan* arriving_;
  std::span<const std::uint32_t> experts_;
};

}  // namespace peerbus::moe
