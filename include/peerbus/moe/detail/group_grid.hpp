// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/rank_group.hpp>

namespace peerbus::moe::detail {

/// All ranks by group of near ranks, the same on all ranks. Groups are in the order of their lowest
/// ranks, and ranks of a group in ascending order. The place of a rank is its index in its group.
struct group_grid {
  std::vector<std::vector<rank_id>> groups;  ///< the ranks of each group
  std::size_t own_group = 0;                 ///< of the caller
  std::size_t own_place = 0;                 ///< of the caller

  /// Returns the ranks of each group if all have as many, else 0.
  [[nodiscard]] std::size_t ranks_per_group() const noexcept;
  /// Returns the ranks of the caller's group.
  [[nodiscard]] const std::vector<rank_id>& near() const noexcept { return groups[own_group]; }
  /// Returns the ranks that have the caller's place in each group. Groups must be of equal size.
  [[nodiscard]] std::vector<rank_id> column() const;
};

/// Finds the groups. Collective. `leader` is the lowest rank that is near the caller, itself
/// included. Cost: one allgather.
/// Throws, on all ranks: `error` as `gather_or_refuse`.
group_grid find_groups(rank_group& group, bootstrap& boot, rank_id leader, deadline until);

/// Returns the logical experts of a group, in the order of its ranks.
std::vector<std::uint32_t> experts_of(const expert_map& experts, std::span<const rank_id> group);

/// Returns why an exchange with `config` cannot use two levels, or an empty string if it can.
std::string obstacle_to_relay(const exchange_config& config, const group_grid& grid);

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/impl/group_grid.hpp>  // IWYU pragma: keep
#endif
