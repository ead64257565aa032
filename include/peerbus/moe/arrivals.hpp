// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/count_table.hpp>
#include <peerbus/moe/layout.hpp>

namespace peerbus::moe {

/// Where the rows that reach this rank lie, by block and source rank: the receiving half of a
/// dispatch's arithmetic. All its memory is taken at construction.
class arrivals {
 public:
  arrivals(const block_geometry& geometry, rank_id rank, std::size_t ranks);

  /// Finds the rows from what each rank counted.
  void place(const count_table& counts) noexcept;

  /// First rows of what came from each source rank to a block of this rank, and the row after the
  /// last: [ranks + 1]. The number behind them is the first row of the next block, or `end()`.
  /// The span stays the same from dispatch to dispatch; its numbers change.
  [[nodiscard]] std::span<const std::uint32_t> of(std::size_t local_block) const noexcept {
    return std::span{starts_}.subspan(local_block * (ranks_ + 1), ranks_ + 1);
  }
  /// Blocks that this rank holds.
  [[nodiscard]] std::size_t blocks() const noexcept { return geometry_.blocks.count(rank_); }
  /// Number of rows that arrive, without gaps.
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  /// Where the rows of the last block end, gaps included.
  [[nodiscard]] std::uint32_t end() const noexcept { return end_; }

 private:
  template <class Count>
  void place_as(const count_table& counts) noexcept;

  block_geometry geometry_;
  rank_id rank_;
  std::size_t ranks_;
  std::size_t rows_ = 0;
  std::uint32_t end_ = 0;
  std::vector<std::uint32_t> starts_;
};

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/impl/arrivals.hpp>  // IWYU pragma: keep
#endif
