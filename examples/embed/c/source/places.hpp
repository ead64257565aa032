// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/rank.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/received_slots.hpp>
#include <peerbus/moe/received_token_slots.hpp>
#include <peerbus/moe/received_tokens.hpp>
#include <peerbus/moe/row_block.hpp>

/// The places of the rows of a batch in one form for all layouts.
namespace peerbus::c_library {

/// The places of rows: for each block of this rank and each source rank, the first row and the
/// number of rows.
struct row_places {
  std::uint64_t ticket = 0;               ///< of the dispatch; 0 before the first
  std::vector<std::uint32_t> first_rows;  ///< [blocks, ranks]
  std::vector<std::uint32_t> counts;      ///< [blocks, ranks]
  std::uint64_t rows = 0;                 ///< all rows that arrived
  std::uint64_t end = 0;                  ///< after the last row, gaps included

  /// Notes that `count` rows of a source begin at row `first`. `i` numbers blocks and sources.
  void note(std::size_t i, std::size_t first, std::size_t count) noexcept {
    first_rows[i] = static_cast<std::uint32_t>(first);
    counts[i] = static_cast<std::uint32_t>(count);
    rows += count;
    if (count != 0) end = first + count;
  }
};

/// Notes the rows of a block whose sources follow each other, from entry `i` on.
template <class Codec>
void note_block(row_places& places, std::size_t i, const moe::row_block<Codec>& block,
                std::size_t ranks) noexcept {
  std::size_t first = block.first_row();
  for (const rank_id source : all_ranks{ranks}) {
    places.note(i + source.index(), first, block.count_from(source));
    first += block.count_from(source);
  }
}

///@{
/// Notes the places of all rows that a dispatch brought.
template <class Codec>
void note_rows(row_places& places, const moe::received<Codec>& rows, std::size_t ranks) noexcept {
  std::size_t i = 0;
  for (const auto& expert : rows.experts()) {
    note_block(places, i, expert, ranks);
    i += ranks;
    if (expert.padded_count() != 0) places.end = expert.first_row() + expert.padded_count();
  }
}
template <class Codec>
void note_rows(row_places& places, const moe::received_tokens<Codec>& rows,
               std::size_t ranks) noexcept {
  note_block<Codec>(places, 0, rows, ranks);
}
template <class Codec>
void note_rows(row_places& places, const moe::received_slots<Codec>& rows,
               std::size_t ranks) noexcept {
  for (std::size_t e = 0; e < rows.local_experts(); ++e)
    for (const rank_id source : all_ranks{ranks}) {
      const auto run = rows.rows_from(e, source);
      places.note(e * ranks + source.index(), run.first_row(), run.count());
    }
}
template <class Codec>
void note_rows(row_places& places, const moe::received_token_slots<Codec>& rows,
               std::size_t ranks) noexcept {
  for (const rank_id source : all_ranks{ranks}) {
    const auto run = rows.rows_from(source);
    places.note(source.index(), run.first_row(), run.count());
  }
}
///@}

}  // namespace peerbus::c_library
