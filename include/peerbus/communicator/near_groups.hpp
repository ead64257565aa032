// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// All ranks by group of near ranks, such as those of one host. Groups are in the order of their
/// lowest ranks, and ranks of a group in ascending order. The place of a rank is its index in its
/// group. The groups are the same on all ranks.
///
/// There are as many columns as the smallest group has ranks. The column of a rank is its place
/// modulo the number of columns. If all groups have as many ranks, a column holds the ranks with
/// one place, one of each group, which are counterparts of each other.
struct near_groups {
  std::vector<std::vector<rank_id>> groups;  ///< the ranks of each group; empty if none were found
  std::size_t own_group = 0;                 ///< of the caller
  std::size_t own_place = 0;                 ///< of the caller

  /// Returns the number of groups.
  [[nodiscard]] std::size_t count() const noexcept { return groups.size(); }
  /// Returns the ranks of each group if all have as many, else 0.
  [[nodiscard]] std::size_t ranks_per_group() const noexcept;
  /// Returns the ranks of the caller's group.
  [[nodiscard]] const std::vector<rank_id>& near() const noexcept { return groups[own_group]; }
  /// Returns the number of columns: the ranks of the smallest group.
  [[nodiscard]] std::size_t columns() const noexcept;
  /// Returns the ranks of a column, by group and then by place.
  [[nodiscard]] std::vector<rank_id> column(std::size_t number) const;
  /// Returns the ranks of the largest column.
  [[nodiscard]] std::size_t largest_column() const noexcept;
  /// Returns the group of each rank: [ranks].
  [[nodiscard]] std::vector<std::uint32_t> group_of_each() const;

  ///@{
  /// Only if all groups have as many ranks.
  ///
  /// Returns the rank of group `group` that has the caller's place in it.
  [[nodiscard]] rank_id counterpart(std::size_t group) const noexcept {
    return groups[group][own_place];
  }
  /// Returns whether `rank` has the caller's place in its group.
  [[nodiscard]] bool is_counterpart(rank_id rank) const noexcept {
    return std::ranges::any_of(groups,
                               [&](const auto& members) { return members[own_place] == rank; });
  }
  /// Returns the rank of the caller's group that has the place of `rank` in its group.
  [[nodiscard]] rank_id near_counterpart(rank_id rank) const noexcept;
  ///@}
};

/// Finds the groups. Collective. `leader` is the lowest rank that is near the caller, itself
/// included. `doing` names the operation in errors.
/// Cost: one allgather.
/// Throws: as `rank_group::gather`.
near_groups gather_near_groups(rank_group& group, std::string_view doing, rank_id leader,
                               deadline until);

/// Finds the groups, where `is_near(peer)` says whether another rank is near the caller. Contract
/// as above.
template <class IsNear>
[[nodiscard]] near_groups find_near_groups(rank_group& group, std::string_view doing,
                                           deadline until, IsNear&& is_near) {
  rank_id leader = group.rank();
  for (const rank_id peer : group.peers())
    if (peer < leader && is_near(peer)) leader = peer;
  return gather_near_groups(group, doing, leader, until);
}

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/communicator/near_groups.ipp>  // IWYU pragma: keep
#endif
