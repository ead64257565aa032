// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include <peerbus/communicator/groups_by_leader.hpp>
#include <peerbus/communicator/near_groups.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE near_groups find_near_groups(rank_group& group, bootstrap& boot, rank_id leader,
                                            deadline until) {
  const auto groups =
      peerbus::detail::groups_by_leader(group, boot, "collective::team: near ranks", leader, until);
  near_groups made;
  const std::size_t size = groups.front().size();
  if (std::ranges::any_of(groups, [size](const auto& members) { return members.size() != size; }))
    return made;
  for (const auto& members : groups)
    made.members.insert(made.members.end(), members.begin(), members.end());
  made.ranks = size;
  made.own =
      static_cast<std::size_t>(std::ranges::find(made.members, boot.rank()) - made.members.begin());
  return made;
}

}  // namespace peerbus::collective::detail
