// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// Returns the ranks of each group, ascending, in the order of the groups' lowest ranks.
/// Collective. `leader` is the lowest rank of the caller's group. `doing` names the operation in
/// errors. Cost: one allgather. Throws: as `bootstrap::allgather`; the communicator is then
/// poisoned.
std::vector<std::vector<rank_id>> groups_by_leader(rank_group& group, bootstrap& boot,
                                                   std::string_view doing, rank_id leader,
                                                   deadline until);

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/communicator/groups_by_leader.ipp>  // IWYU pragma: keep
#endif
