// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

#include "support/process.hpp"
#include "support/ranks.hpp"

namespace test {

/// Has each rank of a group fork in turn; the child speaks neither for the rank nor for its part in
/// a subgroup: it is refused, and its end is not the rank's. Collective.
/// Returns: true in such a child, which is to destroy what it has and end well, as the rank would.
[[nodiscard]] inline bool is_silent_child(peerbus::bootstrap& boot) {
  const auto patience = [] { return peerbus::deadline::after(std::chrono::seconds{60}); };
  std::vector<peerbus::rank_id> all;
  for (const peerbus::rank_id rank : peerbus::all_ranks{boot.size()}) all.push_back(rank);
  for (const peerbus::rank_id parent : all) {
    const auto part = boot.subgroup(all, patience());
    if (boot.rank() == parent && is_forked_child()) {
      expect_error(peerbus::errc::invalid_argument, {"by fork"},
                   [&] { static_cast<void>(boot.allgather({}, patience(), "by a child")); });
      return true;
    }
    static_cast<void>(part->allgather({}, patience(), "after the child, in the subgroup"));
    static_cast<void>(boot.allgather({}, patience(), "after the child"));
    for (const peerbus::rank_id peer : all)
      expect(boot.members()->state(peer) == peerbus::rank_state::running,
             boot.members()->fate(peer));
    static_cast<void>(boot.allgather({}, patience(), "after the look"));  // Nobody leaves before.
  }
  return false;
}

}  // namespace test
