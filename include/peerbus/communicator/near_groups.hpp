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

/// All ranks in groups of near ranks, such as those of one host. Groups are in the order of their
/// lowest ranks, and ranks of a group in ascending order. The place of a rank is its index in its
/// group. The groups are the same on all ranks.
///
/// The number of columns is the size of the smallest group. The column of a rank is its place
/// modulo the number of columns. If all groups have equally many ranks, a column holds the ranks
/// with the same place, one rank of each group, which are counterparts of each other.
struct near_groups {
  std::vector<std::vector<rank_id>> groups;  ///< the ranks of each group; may be empty
  std::size_t own_group = 0;                 ///< the index of the caller's group
  std::size_t own_place = 0;                 ///< the place of the caller in its group

  /// Returns the number of groups.
  [[nodiscard]] std::size_t count() const noexcept { return groups.size(); }
  /// Returns the number of ranks of each group, or 0 if groups differ in size or there are none.
  [[nodiscard]] std::size_t ranks_per_group() const noexcept;
  /// Returns the ranks of the caller's group, with the caller.
  [[nodiscard]] const std::vector<rank_id>& near() const noexcept { return groups[own_group]; }
  /// Returns the number of columns, which is the size of the smallest group.
  [[nodiscard]] std::size_t columns() const noexcept;
  /// Returns the ranks of a column, ordered by group and then by place.
  [[nodiscard]] std::vector<rank_id> column(std::size_t number) const;
  /// Returns the number of ranks in the largest column.
  [[nodiscard]] std::size_t largest_column() const noexcept;
  /// Returns the group of each rank: [ranks].
  [[nodiscard]] std::vector<std::uint32_t> group_of_each() const;

  ///@{
  /// Returns the rank of group `group` that has the caller's place in it. The functions of this
  /// block require that all groups have equally many ranks.
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

/// Finds and returns the groups of near ranks. Collective. `leader` is the lowest rank that is near
/// the caller, with the caller included. `doing` names the operation in errors.
/// Cost: one allgather.
/// Throws: as `rank_group::gather`.
near_groups gather_near_groups(rank_group& group, std::string_view doing, rank_id leader,
                               deadline until);

/// Finds and returns the groups of near ranks. `is_near(peer)` returns whether another rank is near
/// the caller. Otherwise as `gather_near_groups`.
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
