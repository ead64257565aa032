// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// The groups of ranks that load each other's pages, if all groups have the same size.
struct near_groups {
  std::size_t ranks = 1;  ///< the size of each group; 1 if sizes differ
  std::vector<rank_id>
      members;          ///< group by group, each in the order of ranks; empty for `ranks` 1
  std::size_t own = 0;  ///< the place of the caller in `members`

  /// Returns the members of the caller's group.
  [[nodiscard]] std::span<const rank_id> near() const noexcept {
    return std::span{members}.subspan(own - place(), ranks);
  }
  /// Returns the place of the caller in its group.
  [[nodiscard]] std::size_t place() const noexcept { return own % ranks; }
  /// Returns the number of groups.
  [[nodiscard]] std::size_t count() const noexcept { return members.size() / ranks; }
  /// Returns the member of group `group` that has the place `place_there` in it.
  [[nodiscard]] rank_id member(std::size_t group, std::size_t place_there) const noexcept {
    return members[group * ranks + place_there];
  }
  /// Returns the member of group `group` that has the caller's place in it.
  [[nodiscard]] rank_id counterpart(std::size_t group) const noexcept {
    return member(group, place());
  }
  /// Returns the member of the caller's group that has the place of `rank` in its group.
  [[nodiscard]] rank_id near_counterpart(rank_id rank) const noexcept {
    std::size_t index = 0;
    while (members[index] != rank) ++index;
    return near()[index % ranks];
  }
  /// Returns whether `rank` has the caller's place in its group.
  [[nodiscard]] bool is_counterpart(rank_id rank) const noexcept {
    for (std::size_t group = 0; group < count(); ++group)
      if (counterpart(group) == rank) return true;
    return false;
  }
};

/// Finds the groups. `leader` is the lowest rank of the caller's group. Collective.
/// Cost: one allgather. Throws: as `bootstrap::allgather`; the communicator is then poisoned.
near_groups find_near_groups(rank_group& group, bootstrap& boot, rank_id leader, deadline until);

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/communicator/near_groups.ipp>  // IWYU pragma: keep
#endif
