// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/departures.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/layout.hpp>

namespace peerbus::moe {

/// The copies that leave this rank, in the order of their places: by rank, then by row. For roads
/// that put rows, so that puts which continue each other follow each other. All its memory is taken
/// at construction.
class copy_order {
 public:
  /// A copy of a token, as its number among all places: token x copies per token + slot.
  using copy_number = std::uint32_t;

  copy_order(const exchange_config& config, const block_geometry& geometry, std::size_t ranks);

  /// Sorts what `leaving.place` placed.
  void sort(const departures& leaving) noexcept;

  /// All copies that are sent, as `sort` left them.
  [[nodiscard]] std::span<const copy_number> all() const noexcept {
    return std::span{copies_}.first(begins_.back());
  }
  /// The part of `all()` that goes to one rank.
  [[nodiscard]] lane::range to(rank_id rank) const noexcept {
    return {begins_[rank.index()], begins_[rank.index() + 1]};
  }

 private:
  std::vector<copy_number> copies_;
  std::vector<std::uint32_t> begins_;  ///< [ranks + 1]: where the copies for each rank begin
  std::vector<std::uint32_t> next_;    ///< [blocks]: where the next copy for each goes
};

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/road/impl/copy_order.hpp>  // IWYU pragma: keep
#endif
