// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <peerbus/communicator/any_window.hpp>
#include <peerbus/communicator/group_view.hpp>
#include <peerbus/communicator/subset.hpp>
#include <peerbus/communicator/subset_window.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// The members of the present view of a communicator as a group, renumbered in the order of their
/// ranks, with a window of all ranks. Valid for one view.
struct member_window {
  /// Takes `whole`, the window of all ranks. Does not communicate.
  explicit member_window(std::shared_ptr<any_window> whole)
      : boot{whole->group().boot(), members_of(whole->group().view())},
        group{whole->group(), boot, "the members of the view"},
        window{group, std::move(whole)} {}

  subset_bootstrap boot;  ///< the bootstrap of the members
  subset_group group;     ///< the group of the members
  subset_window window;   ///< the window of the members

 private:
  static std::vector<rank_id> members_of(const group_view& view) {
    return {view.members().begin(), view.members().end()};
  }
};

}  // namespace peerbus::detail
