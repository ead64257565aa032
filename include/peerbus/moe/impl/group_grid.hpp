// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/groups_by_leader.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/detail/group_grid.hpp>
#include <peerbus/rank_group.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE std::size_t group_grid::ranks_per_group() const noexcept {
  const std::size_t size = near().size();
  const bool equal =
      std::ranges::all_of(groups, [size](const auto& ranks) { return ranks.size() == size; });
  return equal ? size : 0;
}

PEERBUS_INLINE std::vector<rank_id> group_grid::column() const {
  std::vector<rank_id> ranks;
  ranks.reserve(groups.size());
  for (const auto& group : groups) ranks.push_back(group[own_place]);
  return ranks;
}

PEERBUS_INLINE group_grid find_groups(rank_group& group, bootstrap& boot, rank_id leader,
                                      deadline until) {
  group_grid found;
  found.groups = peerbus::detail::groups_by_leader(group, boot, "two_level_exchange: near ranks",
                                                   leader, until);
  while (found.near().front() != leader) ++found.own_group;
  found.own_place =
      static_cast<std::size_t>(std::ranges::find(found.near(), boot.rank()) - found.near().begin());
  return found;
}

PEERBUS_INLINE std::vector<std::uint32_t> experts_of(const expert_map& experts,
                                                     std::span<const rank_id> group) {
  std::vector<std::uint32_t> held;
  for (const rank_id rank : group) {
    const auto own = experts.held_by(rank);
    held.insert(held.end(), own.begin(), own.end());
  }
  return held;
}

PEERBUS_INLINE std::string obstacle_to_relay(const exchange_config& config,
                                             const group_grid& grid) {
  using peerbus::detail::concat;
  if (grid.ranks_per_group() == 0) {
    std::string sizes;
    for (const auto& ranks : grid.groups) sizes += concat(sizes.empty() ? "" : ", ", ranks.size());
    return concat("groups have ", sizes, " ranks, expected equally many");
  }
  const std::size_t ranks = grid.groups.size() * grid.ranks_per_group();
  const expert_placement dealt{config.experts, ranks};
  for (const auto& group : grid.groups) {
    std::size_t held = 0;
    for (const rank_id rank : group) held += dealt.count(rank);
    if (held < config.top_k)
      return concat("the group of ", group.front(), " holds ", held,
                    " experts, expected at least top_k, ", config.top_k);
  }
  if (config.note_bytes != 0)
    return concat("note_bytes is ", config.note_bytes, ", expected 0, as notes are not relayed");
  if (config.output_attachment != 0)
    return concat("output_attachment is ", config.output_attachment,
                  ", expected 0, as partial sums have none");
  return {};
}

}  // namespace peerbus::moe::detail
