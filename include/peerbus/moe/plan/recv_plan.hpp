// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/plan/count_table.hpp>

namespace peerbus::moe {

/// The places of the rows that reach this rank, by block and source rank. This is the receiving
/// half of the arithmetic of a dispatch. Only the constructor allocates.
class recv_plan {
 public:
  /// Allocates for the blocks that `rank` holds.
  recv_plan(const block_geometry& geometry, rank_id rank, std::size_t ranks);

  /// Sets the largest number of tokens of a rank in the next `place`.
  void bound(std::size_t tokens) noexcept { geometry_.bound(tokens, ranks_); }

  /// Computes the places of all rows from the counts of all ranks for the blocks of this rank.
  void place(const count_table& counts) noexcept;

  /// Returns the first row from `source` in a block of this rank, then the row after the last.
  /// Every dispatch has the same span with other numbers.
  [[nodiscard]] std::span<const std::uint32_t, 2> from(std::size_t local_block,
                                                       rank_id source) const noexcept {
    const std::size_t first = geometry_.has_slots() ? 2 * (local_block * ranks_ + source.index())
                                                    : local_block * (ranks_ + 1) + source.index();
    return std::span<const std::uint32_t, 2>{starts_.data() + first, 2};
  }
  /// Returns the first row from each source rank in a block of this rank, then the row after the
  /// last row of the block: [ranks + 1]. Not for layouts with slots. The number that follows the
  /// span in memory is the first row of the next block, or `end()`. Every dispatch has the same
  /// span with other numbers.
  [[nodiscard]] std::span<const std::uint32_t> of(std::size_t local_block) const noexcept {
    return std::span{starts_}.subspan(local_block * (ranks_ + 1), ranks_ + 1);
  }
  /// Returns the first slot of this rank, 0, and the slot after the last; without slots, the first
  /// row and the row after the last. Only for layouts by source.
  [[nodiscard]] std::span<const std::uint32_t, 2> slots() const noexcept {
    return std::span{starts_}.last<2>();
  }
  /// Returns the number of rows from each source rank in each block: [blocks, ranks]. Only for
  /// layouts by source.
  [[nodiscard]] std::span<const std::uint32_t> counts() const noexcept { return counts_; }
  /// Returns the number of ranks.
  [[nodiscard]] std::size_t ranks() const noexcept { return ranks_; }
  /// Returns the number of blocks that this rank holds.
  [[nodiscard]] std::size_t blocks() const noexcept { return geometry_.blocks.count(rank_); }
  /// Returns the number of rows that arrive, without gaps.
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  /// Returns the row after the last block, gaps included.
  [[nodiscard]] std::uint32_t end() const noexcept { return end_; }

 private:
  template <class Count>
  void place_as(const count_table& counts) noexcept;

  template <class Count>
  void count_slots(const std::byte* first_count, std::size_t stride) noexcept;

  block_geometry geometry_;
  rank_id rank_;
  std::size_t ranks_;
  std::size_t rows_ = 0;
  std::uint32_t end_ = 0;
  /// Spans of `of`. With slots: a pair for each block and source rank. By source, `slots()` follow.
  std::vector<std::uint32_t> starts_;
  std::vector<std::uint32_t> counts_;  ///< empty unless by source
};

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/plan/recv_plan.ipp>  // IWYU pragma: keep
#endif
