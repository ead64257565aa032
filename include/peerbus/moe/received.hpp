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

/// Names one dispatch of one exchange, from `dispatch_send` to `combine`.
struct ticket {
  std::uint64_t number = 0;        ///< of the dispatch; the first is 1
  const void* exchange = nullptr;  ///< identity of the exchange
  friend bool operator==(const ticket&, const ticket&) = default;
};

/// The rows that one local expert received.
template <token_codec Codec>
class expert_rows : public row_block<Codec> {
 public:
  expert_rows(std::size_t id, const row_block<Codec>& rows) noexcept
      : row_block<Codec>{rows}, id_{id} {}

  /// Number of the expert within the whole group, as routing names it.
  [[nodiscard]] std::size_t id() const noexcept { return id_; }

 private:
  std::size_t id_;
};

/// What one dispatch brought to this rank, expert-major: a view, cheap to copy, valid as its rows
/// are.
template <token_codec Codec>
class received {
 public:
  using element = typename Codec::element;

  /// `rows` counts the rows without gaps, `end` with them; `set` is the batch's set at this rank.
  received(moe::ticket from, std::span<expert_rows<Codec>> experts, std::size_t rows,
           std::size_t end, const set_view& set) noexcept
      : ticket_{from}, experts_{experts}, rows_{rows}, end_{end}, set_{set} {}

  /// One entry per local expert, also for those without rows.
  [[nodiscard]] std::span<expert_rows<Codec>> experts() const noexcept { return experts_; }
  /// How many rows arrived for all local experts.
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  /// The rows of all local experts in one array, gaps included: [rows, row_bytes(hidden) /
  /// sizeof(element)]; an expert's begin at its `first_row()`. What a grouped GEMM takes.
  [[nodiscard]] std::span<const element> all_rows() const noexcept {
    return columns().rows().first(end_ * set_.map().format.row_bytes / sizeof(element));
  }
  /// The arrays that all rows, and what travels with them, lie in: writable, from row 0 to the
  /// exchange's row capacity.
  [[nodiscard]] batch_columns<Codec> columns() const noexcept { return batch_columns<Codec>{set_}; }

  [[nodiscard]] moe::ticket ticket() const noexcept { return ticket_; }

 private:
  moe::ticket ticket_;
  std::span<expert_rows<Codec>> experts_;
  std::size_t rows_;
  std::size_t end_;
  set_view set_;
};

}  // namespace peerbus::moe
