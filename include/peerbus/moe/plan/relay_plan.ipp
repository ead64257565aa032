// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/plan/relay_plan.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE relay_plan plan_relay(rank_group& group, near_groups groups,
                                     const exchange_config& config, const codec_facts& codec,
                                     const layout_facts& layout, deadline until) {
  relay_plan made;
  const std::size_t attached =
      std::accumulate(config.attachments.begin(), config.attachments.end(), std::size_t{0});
  const std::string obstacle =
      obstacle_to_relay(config, groups, codec, layout,
                        layout_facts::of(rank_major{}, dispatch_protocol::counts_first));
  relay_choice& chosen = made.chosen;
  chosen = {.asked = config.relay,
            .relays = config.relay == relay::always,
            .groups = groups.count(),
            .ranks_per_group = groups.ranks_per_group(),
            .estimate = estimate_relay(
                {.experts = config.experts,
                 .top_k = config.top_k,
                 .ranks = group.size(),
                 .groups = groups.count(),
                 .max_tokens = config.max_tokens,
                 .row_bytes = codec.format.row_bytes + codec.format.scale_bytes + attached,
                 .output_bytes = config.hidden * sizeof(bf16),
                 .by_rank = layout.shape == block_shape::by_rank,
                 .load = static_cast<double>(groups.largest_column()) /
                         static_cast<double>(groups.count())},
                config.costs == nullptr ? relay_costs{} : relay_costs_of(*config.costs)),
            .why = "as asked",
            .group_of = groups.group_of_each()};
  if (config.relay == relay::automatic) {
    chosen.relays = obstacle.empty() && chosen.estimate.pays();
    if (!obstacle.empty())
      chosen.why = obstacle;
    else
      chosen.why = chosen.relays ? "which takes less time" : "as two take no less time";
  }
  const std::array values{declared{"levels", chosen.relays ? 2U : 1U}};
  std::optional<error> objection;
  if (config.relay == relay::always && !obstacle.empty())
    objection = error{errc::unsupported, "exchange: relay is always, but " + obstacle};
  group.agree("exchange", values, until, objection);
  made.groups = std::move(groups);
  return made;
}

PEERBUS_INLINE relay_plan plan_without_groups(rank_group& group, const exchange_config& config,
                                              deadline until) {
  if (config.relay == relay::always)
    group.agree("exchange", {}, until,
                error{errc::unsupported,
                      "exchange: relay is always, but this transport does not tell near ranks from "
                      "far ones, expected never or automatic, or a transport such as planes"});
  return {.chosen = {.asked = config.relay,
                     .why = config.relay == relay::never ? "as asked" : "as no rank is far"},
          .groups = {}};
}

/// Returns the distances of ranks from the caller by groups: 0 for itself, 1 within its group, 2.
inline std::vector<std::uint32_t> distances_by_group(const near_groups& groups) {
  std::vector<std::uint32_t> found = groups.group_of_each();
  for (std::uint32_t& group : found) group = group == groups.own_group ? 1U : 2U;
  found[groups.near()[groups.own_place].index()] = 0;
  return found;
}

PEERBUS_INLINE relay_ranks::relay_ranks(rank_group& group, bootstrap& boot,
                                        const exchange_config& config, const near_groups& groups,
                                        bool by_rank)
    : router{config, group.rank(), group.size(), distances_by_group(groups)},
      experts{experts_of_groups(placement_of(config, group.size()), groups)},
      own_group{groups.own_group},
      near_copies{copies_in_group(groups, config.top_k, by_rank)},
      most{0},
      far_boot{boot, groups.column(groups.own_place % groups.columns())},
      near_boot{boot, groups.near()},
      far{group, far_boot, "the ranks of a column of all groups"},
      near{group, near_boot, "the ranks of a group"} {
  for (const group_experts& each : experts) most = std::max(most, each.held.size());
  const auto column = far_boot.ranks_of_whole();
  far_physical.reserve(column.size() * most);
  const auto group_of = groups.group_of_each();
  for (std::size_t i = 0; i < column.size(); ++i) {
    // The first rank of each group represents it.
    const std::size_t number = group_of[column[i].index()];
    if (i == 0 || group_of[column[i - 1].index()] != number)
      far_physical.insert(far_physical.end(), experts[number].held.begin(),
                          experts[number].held.end());
    far_physical.resize((i + 1) * most, vacant);
  }
}

/// Returns the logical experts of `places`, which are physical experts of `all` or `vacant`.
inline std::vector<std::uint32_t> logical_of(const expert_map& all,
                                             std::span<const std::uint32_t> places) {
  std::vector<std::uint32_t> found(places.begin(), places.end());
  for (std::uint32_t& place : found)
    if (place != vacant) place = all.logical(place);
  return found;
}

PEERBUS_INLINE std::vector<std::uint32_t> relay_ranks::near_experts(const expert_map& all) const {
  return logical_of(all, experts[own_group].held);
}

PEERBUS_INLINE expert_router relay_ranks::far_router(const exchange_config& far_config,
                                                     const expert_router& all) const {
  std::vector<std::uint32_t> place_of(all.map().physical_experts());
  for (std::uint32_t place = 0; place < far_physical.size(); ++place)
    if (far_physical[place] != vacant) place_of[far_physical[place]] = place;
  const std::vector<std::uint32_t> names = logical_of(all.map(), far_physical);
  exchange_config named = far_config;
  named.experts = all.map().experts();
  named.physical_to_logical = names;
  expert_router made{named, far.rank(), far.size()};
  made.choose_by(all.cycles().renamed(place_of));
  return made;
}

PEERBUS_INLINE level_configs relay_ranks::configs(const exchange_config& config,
                                                  const near_groups& groups, std::size_t column,
                                                  std::size_t group_number) const noexcept {
  return configs_of_levels(config, groups, experts[group_number], {column, most, near_copies});
}

}  // namespace peerbus::moe::detail
