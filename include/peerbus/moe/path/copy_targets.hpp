// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/path/row_path_batch.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe {

/// The places of the copies of one token at the ranks whose memory this rank can store to.
class copy_targets {
 public:
  /// Finds the places of the copies of token `t` that go to ranks whose set in `sets`, [ranks], is
  /// not empty. Writes the origins, slots and attachments beside the rows there.
  copy_targets(const row_path_batch& batch, std::size_t t, std::span<const set_view> sets,
               rank_id own_rank) noexcept;

  /// Returns the place of the row of each copy.
  [[nodiscard]] std::span<std::byte* const> rows() const noexcept {
    return std::span{rows_}.first(count_);
  }
  /// Returns the place of the scales of each copy, in the order of `rows`.
  [[nodiscard]] std::span<std::byte* const> scales() const noexcept {
    return std::span{scales_}.first(count_);
  }

 private:
  std::array<std::byte*, max_top_k> rows_;    ///< the first `count_` are set
  std::array<std::byte*, max_top_k> scales_;  ///< the first `count_` are set
  std::size_t count_ = 0;
};

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/path/copy_targets.ipp>  // IWYU pragma: keep
#endif
