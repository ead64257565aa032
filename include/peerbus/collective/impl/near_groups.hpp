// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/collective/detail/near_groups.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/rank_group.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE near_groups find_near_groups(rank_group& group, bootstrap& boot, rank_id leader,
                                            deadline until) {
  const auto own_leader = static_cast<std::uint32_t>(leader.index());
  bootstrap::contribution own;
  own.bytes.resize(sizeof own_leader);
  std::memcpy(own.bytes.data(), &own_leader, sizeof own_leader);
  std::vector<bootstrap::contribution> all;
  try {
    all =
        gather_or_refuse(boot, "collective::team: near ranks", std::move(own), std::nullopt, until);
  } catch (const agreed_error&) {
    throw;
  } catch (const error& problem) {
    group.fail(problem.code(), problem.text());
  }
  std::vector<std::vector<rank_id>> groups(boot.size());  // By leader.
  for (const rank_id rank : all_ranks{boot.size()}) {
    std::uint32_t theirs = 0;
    std::memcpy(&theirs, all[rank.index()].bytes.data(), sizeof theirs);
    groups[theirs].push_back(rank);
  }
  near_groups made;
  const std::size_t size = groups[leader.index()].size();
  if (std::ranges::any_of(groups, [size](const auto& members) {
        return !members.empty() && members.size() != size;
      }))
    return made;
  for (const auto& members : groups)
    made.members.insert(made.members.end(), members.begin(), members.end());
  made.ranks = size;
  made.own =
      static_cast<std::size_t>(std::ranges::find(made.members, boot.rank()) - made.members.begin());
  return made;
}

}  // namespace peerbus::collective::detail
