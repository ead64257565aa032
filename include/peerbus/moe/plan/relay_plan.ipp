// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
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

PEERBUS_INLINE relay_ranks::relay_ranks(rank_group& group, bootstrap& boot,
                                        const exchange_config& config, const near_groups& groups,
                                        bool by_rank)
    : experts{config, group.size()},
      near_copies{copies_in_group(groups, config.top_k, by_rank)},
      most{0},
      far_boot{boot, groups.column(groups.own_place % groups.columns())},
      near_boot{boot, groups.near()},
      far{group, far_boot, "the ranks of a column of all groups"},
      near{group, near_boot, "the ranks of a group"} {
  held.reserve(groups.count());
  for (const auto& ranks : groups.groups) {
    held.push_back(experts_of(experts, ranks));
    most = std::max(most, held.back().size());
  }
  // The experts of the places of each rank of the column. Numbers beyond `config.experts` are those
  // of places without expert.
  const auto column = far_boot.ranks_of_whole();
  places.reserve(column.size() * most);
  auto without_expert = static_cast<std::uint32_t>(config.experts);
  const auto group_of = groups.group_of_each();
  for (std::size_t i = 0; i < column.size(); ++i) {
    // The first rank of each group represents it.
    const std::size_t number = group_of[column[i].index()];
    if (i == 0 || group_of[column[i - 1].index()] != number)
      places.insert(places.end(), held[number].begin(), held[number].end());
    while (places.size() < (i + 1) * most) places.push_back(without_expert++);
  }
}

PEERBUS_INLINE level_configs relay_ranks::configs(const exchange_config& config,
                                                  const near_groups& groups, std::size_t column,
                                                  std::size_t group_number) const noexcept {
  return configs_of_levels(config, groups, {column, most, held[group_number].size(), near_copies});
}

}  // namespace peerbus::moe::detail
