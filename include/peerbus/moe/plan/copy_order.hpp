// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/plan/send_plan.hpp>

namespace peerbus::moe {

/// The copies that leave this rank, in the order of their places: by rank, then by row. Paths that
/// put rows use this order, so that puts to consecutive bytes follow each other. Only the
/// constructor allocates.
class copy_order {
 public:
  /// The number of a copy: token x copies per token + slot.
  using copy_number = std::uint32_t;

  /// Allocates for all copies that one rank can send.
  copy_order(const exchange_config& config, const block_geometry& geometry, std::size_t rank_count);

  /// Sorts the copies that `leaving.place` has placed.
  void sort(const send_plan& leaving) noexcept;

  /// Returns all copies that are sent, in the order of the last `sort`.
  [[nodiscard]] std::span<const copy_number> all() const noexcept {
    return std::span{copies_}.first(begins_.back());
  }
  /// Returns the part of `all()` that goes to `rank`.
  [[nodiscard]] lane::range to(rank_id rank) const noexcept {
    return {begins_[rank.index()], begins_[rank.index() + 1]};
  }

 private:
  std::vector<copy_number> copies_;
  std::vector<std::uint32_t> begins_;  ///< [ranks + 1]: first copy for each rank, then the end
  std::vector<std::uint32_t> next_;    ///< [blocks]: position of the next copy for each block
};

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/plan/copy_order.ipp>  // IWYU pragma: keep
#endif
