// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/plan/recv_plan.hpp>

namespace peerbus::moe {

/// The rows from other ranks, in the order of the slots of their outputs at home: by home rank,
/// then by slot. Paths that put outputs need this order, because rows lie in the order of experts,
/// in which outputs for neighbouring slots do not lie together. Only the constructor allocates.
class home_order {
 public:
  /// Allocates for all rows that can arrive.
  home_order(const exchange_config& config, const block_geometry& geometry, std::size_t rank_count);

  /// Sorts the rows from the ranks whose entry in `wanted`, [ranks], is not 0. `origins` are those
  /// of this rank's rows, from row 0.
  void sort(const recv_plan& arriving, std::span<const std::uint8_t> wanted,
            const wire_origin* origins) noexcept;

  /// Returns the row numbers in the order of the last `sort`.
  [[nodiscard]] std::span<const std::uint32_t> rows() const noexcept {
    return {rows_.get(), count_};
  }
  /// Returns the part of `rows()` whose outputs go to `home`.
  [[nodiscard]] lane::range to(rank_id home) const noexcept {
    return {ranks_[home.index()], ranks_[home.index() + 1]};
  }

 private:
  std::size_t copies_;
  std::size_t count_ = 0;
  std::vector<std::uint32_t> begins_;
  std::vector<std::uint32_t> ranks_;
  std::unique_ptr<std::uint32_t[]> by_slot_;
  std::unique_ptr<std::uint32_t[]> rows_;
};

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/plan/home_order.ipp>  // IWYU pragma: keep
#endif
