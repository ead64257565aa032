// SPDX-License-Identifier: MIT
#pragma once

#include <cstring>
#include <utility>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/communicator/near_groups.hpp>

namespace peerbus::detail {

PEERBUS_INLINE std::size_t near_groups::ranks_per_group() const noexcept {
  const std::size_t size = groups.empty() ? 0 : near().size();
  const bool equal =
      std::ranges::all_of(groups, [size](const auto& ranks) { return ranks.size() == size; });
  return equal ? size : 0;
}

PEERBUS_INLINE std::size_t near_groups::columns() const noexcept {
  std::size_t fewest = near().size();
  for (const auto& ranks : groups) fewest = std::min(fewest, ranks.size());
  return fewest;
}

PEERBUS_INLINE std::vector<rank_id> near_groups::column(std::size_t number) const {
  const std::size_t all = columns();
  std::vector<rank_id> ranks;
  for (const auto& group : groups)
    for (std::size_t place = number; place < group.size(); place += all)
      ranks.push_back(group[place]);
  return ranks;
}

PEERBUS_INLINE std::size_t near_groups::largest_column() const noexcept {
  // In each group the first column has as many ranks as any other.
  const std::size_t all = columns();
  std::size_t ranks = 0;
  for (const auto& group : groups) ranks += (group.size() + all - 1) / all;
  return ranks;
}

PEERBUS_INLINE std::vector<std::uint32_t> near_groups::group_of_each() const {
  std::size_t ranks = 0;
  for (const auto& group : groups) ranks += group.size();
  std::vector<std::uint32_t> found(ranks);
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (const rank_id rank : groups[g]) found[rank.index()] = static_cast<std::uint32_t>(g);
  return found;
}

PEERBUS_INLINE rank_id near_groups::near_counterpart(rank_id rank) const noexcept {
  for (const auto& members : groups)
    if (const auto found = std::ranges::find(members, rank); found != members.end())
      return near()[static_cast<std::size_t>(found - members.begin())];
  return rank;
}

PEERBUS_INLINE near_groups gather_near_groups(rank_group& group, std::string_view doing,
                                              rank_id leader, deadline until) {
  const auto own_leader = static_cast<std::uint32_t>(leader.index());
  bootstrap::contribution own;
  append_bytes(own.bytes, &own_leader, sizeof own_leader);
  const auto given = group.gather(doing, std::move(own), until);
  std::vector<std::vector<rank_id>> by_leader(group.size());
  for (const rank_id rank : group.ranks()) {
    std::uint32_t leader_of_rank = 0;
    std::memcpy(&leader_of_rank, given[rank.index()].bytes.data(), sizeof leader_of_rank);
    by_leader[leader_of_rank].push_back(rank);
  }
  near_groups found;
  for (auto& ranks : by_leader)
    if (!ranks.empty()) found.groups.push_back(std::move(ranks));
  // Every rank is in one group, whatever the ranks say of each other.
  const auto place = [&] { return std::ranges::find(found.near(), group.rank()); };
  while (place() == found.near().end()) ++found.own_group;
  found.own_place = static_cast<std::size_t>(place() - found.near().begin());
  return found;
}

}  // namespace peerbus::detail
