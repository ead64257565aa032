// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/moe/batch_columns.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe {

/// The use of a row by a local expert: the number of the row, and the slot with the expert's
/// weight.
struct row_use {
  std::uint32_t row;   ///< number of the row among all rows of this rank, gaps included
  std::uint32_t slot;  ///< below top_k
  friend bool operator==(const row_use&, const row_use&) = default;
};

/// The uses of all rows, grouped by local expert, in the order of rows. `starts` is [local experts
/// + 1]: the first entry of `uses` for each expert, then the end.
struct expert_index {
  std::span<const std::uint32_t> starts;  ///< [local experts + 1]
  std::span<const row_use> uses;          ///< one for each pair of a row and an expert
};

/// The data that travels beside the rows of a batch in a layout by rank: the slots of their tokens,
/// and the index of the rows by local expert. Rows are numbered through all rows of this rank, gaps
/// included. A view that is valid as long as the rows are (`row_run`).
template <token_codec Codec>
class token_index {
 public:
  /// Makes the view. `experts` has the number within the whole group of each local expert, `slots`
  /// are the local expert ids of all rows, from row 0, and `set` is the set of the batch at this
  /// rank.
  token_index(moe::ticket ticket, std::span<const std::uint32_t> experts, expert_index index,
              std::int32_t* slots, const set_view& set) noexcept
      : ticket_{ticket}, experts_{experts}, index_{index}, slots_{slots}, set_{set} {}

  /// Returns the slots of row `i`: [top_k] numbers of local experts, from 0. A slot is -1 if it is
  /// empty or if another rank holds its expert.
  [[nodiscard]] std::span<const std::int32_t> experts(std::size_t i) const noexcept {
    return {slots_ + i * top_k(), top_k()};
  }
  /// Returns the weights of the slots of row `i`: [top_k], 0 where the expert is -1.
  [[nodiscard]] std::span<const float> weights(std::size_t i) const noexcept {
    return {peerbus::detail::placed<float>(set_.weights(i)), top_k()};
  }

  /// Returns the number of experts that this rank holds.
  [[nodiscard]] std::size_t local_experts() const noexcept { return index_.starts.size() - 1; }
  /// Returns the number of local expert `e` within the whole group, as in `routing`.
  [[nodiscard]] std::size_t expert_id(std::size_t e) const noexcept { return experts_[e]; }
  /// Returns the rows of local expert `e` in ascending order, each with its slot for the expert.
  [[nodiscard]] std::span<const row_use> uses_of(std::size_t e) const noexcept {
    return index_.uses.subspan(index_.starts[e], index_.starts[e + 1] - index_.starts[e]);
  }
  /// Returns the uses of all rows, for callers that pass whole arrays on.
  [[nodiscard]] const expert_index& index() const noexcept { return index_; }

  /// Returns the arrays that contain all rows and the data that travelled with them. They are
  /// writable and reach from row 0 to the row capacity of the exchange.
  [[nodiscard]] batch_columns<Codec> columns() const noexcept { return {set_, slots_}; }

  /// Returns the ticket of the dispatch.
  [[nodiscard]] moe::ticket ticket() const noexcept { return ticket_; }

 private:
  [[nodiscard]] std::size_t top_k() const noexcept {
    return set_.map().slot_bytes / sizeof(std::int32_t);
  }

  moe::ticket ticket_;
  std::span<const std::uint32_t> experts_;
  expert_index index_;
  std::int32_t* slots_;
  set_view set_;
};

}  // namespace peerbus::moe
