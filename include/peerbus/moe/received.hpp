// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/codec/concept.hpp>
#include <peerbus/moe/batch_columns.hpp>
#include <peerbus/moe/row_block.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe {

/// The identity of one dispatch of one exchange. `dispatch_send` returns it, and later calls for
/// the batch take it.
struct ticket {
  std::uint64_t number = 0;        ///< the number of the dispatch, from 1
  const void* exchange = nullptr;  ///< the exchange, for comparison only
  friend bool operator==(const ticket&, const ticket&) = default;
};

/// The rows that one local expert received.
template <token_codec Codec>
class expert_rows : public row_block<Codec> {
 public:
  /// Makes the view of `rows`, which belong to the expert with number `id` in the whole group.
  expert_rows(std::size_t id, const row_block<Codec>& rows) noexcept
      : row_block<Codec>{rows}, id_{id} {}

  /// Returns the number of the expert within the whole group, as in `routing`; `vacant` for a place
  /// without an expert, which has no rows.
  [[nodiscard]] std::size_t id() const noexcept { return id_; }

 private:
  std::size_t id_;
};

/// The rows that one dispatch brought to this rank, in an expert-major layout. A view that is cheap
/// to copy. It is valid as long as its rows are (`row_block`).
template <token_codec Codec>
class received {
 public:
  /// The type in which the codec stores a row.
  using element = typename Codec::element;

  /// Makes the view. `rows` is the number of rows without gaps, `end` the number with gaps, and
  /// `set` the set of the batch at this rank.
  received(moe::ticket ticket, std::span<expert_rows<Codec>> experts, std::size_t rows,
           std::size_t end, const set_view& set) noexcept
      : ticket_{ticket}, experts_{experts}, rows_{rows}, end_{end}, set_{set} {}

  /// Returns one entry per local expert, also for experts without rows.
  [[nodiscard]] std::span<expert_rows<Codec>> experts() const noexcept { return experts_; }
  /// Returns the number of rows that arrived for all local experts together.
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  /// Returns the rows of all local experts as one array for a grouped GEMM, gaps included: [rows
  /// and gaps, row_bytes(hidden) / sizeof(element)]. The rows of an expert begin at its
  /// `first_row()`.
  [[nodiscard]] std::span<const element> all_rows() const noexcept {
    return columns().rows().first(end_ * set_.map().format.row_bytes / sizeof(element));
  }
  /// Returns the arrays that contain all rows and the data that travelled with them. They are
  /// writable and reach from row 0 to the row capacity of the exchange.
  [[nodiscard]] batch_columns<Codec> columns() const noexcept { return batch_columns<Codec>{set_}; }

  /// Returns the ticket of the dispatch.
  [[nodiscard]] moe::ticket ticket() const noexcept { return ticket_; }

 private:
  moe::ticket ticket_;
  std::span<expert_rows<Codec>> experts_;
  std::size_t rows_;
  std::size_t end_;
  set_view set_;
};

}  // namespace peerbus::moe
