// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <span>

#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/plan/check_experts.hpp>
#include <peerbus/moe/plan/level_configs.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE std::size_t copies_in_group(const near_groups& groups, std::size_t top_k,
                                           bool by_rank) noexcept {
  std::size_t largest = 0;
  for (const auto& ranks : groups.groups) largest = std::max(largest, ranks.size());
  return by_rank ? std::min(top_k, largest) : top_k;
}

PEERBUS_INLINE level_configs configs_of_levels(const exchange_config& config,
                                               const near_groups& groups, const group_experts& own,
                                               const level_sizes& sizes) noexcept {
  // On the first level the rank that represents a group holds the experts of all its ranks. Every
  // rank of the column has places for as many experts as the largest group holds, because places
  // are dealt out equally; those beyond the experts of its group are vacant.
  level_configs made{config, config};
  made.far.experts_of_rank = {};
  made.far.replicas = made.near.replicas = {};
  made.far.experts = sizes.column * sizes.most_held;
  made.far.physical_to_logical = {};
  made.far.outputs = outputs_at::expert;
  made.far.protocol = dispatch_protocol::automatic;
  // The attachments of all outputs of a group go home beside its sum. Heads of LogFMT-10 outputs
  // are used up by the sum.
  made.far.output_attachment =
      config.logfmt_outputs ? 0 : sizes.near_copies * config.output_attachment;
  made.far.logfmt_outputs = false;
  // On the second level experts are the physical ones of the group, numbered as the first level
  // numbers them beside each row. A rank may get all tokens of its column, and hands on their
  // notes.
  made.near.experts = own.held.size();
  made.near.experts_of_rank = own.of_rank;
  made.near.physical_to_logical = {};
  made.near.max_tokens = groups.largest_column() * config.max_tokens;
  made.near.outputs = outputs_at::expert;
  made.near.note_bytes = groups.largest_column() * handed_note_bytes(config);
  made.near.weights_at_combine = false;
  return made;
}

PEERBUS_INLINE std::vector<group_experts> experts_of_groups(const expert_placement& places,
                                                            const near_groups& groups) {
  std::vector<group_experts> found(groups.count());
  for (std::size_t g = 0; g < found.size(); ++g) found[g].of_rank.reserve(groups.groups[g].size());
  std::uint32_t next = 0;
  const auto group_of = groups.group_of_each();
  for (const rank_id rank : all_ranks{group_of.size()}) {
    auto& [held, of_rank] = found[group_of[rank.index()]];
    of_rank.push_back(static_cast<std::uint32_t>(places.count(rank)));
    held.resize(held.size() + of_rank.back());
    for (std::uint32_t& expert : std::span{held}.last(of_rank.back())) expert = next++;
  }
  for (auto& [held, of_rank] : found)
    if (!is_other_than_dealt({.experts = held.size(), .experts_of_rank = of_rank}, of_rank.size()))
      of_rank.clear();
  return found;
}

PEERBUS_INLINE std::string obstacle_to_relay(const exchange_config& config,
                                             const near_groups& groups, const codec_facts& codec,
                                             const layout_facts& layout,
                                             const layout_facts& far_layout) {
  using peerbus::detail::concat;
  if (config.same_bits) return "same_bits is set, and relay adds up the sums of groups";
  std::size_t ranks = 0;
  for (const auto& group : groups.groups) ranks += group.size();
  const std::vector<group_experts> experts = experts_of_groups(placement_of(config, ranks), groups);
  std::size_t most = 0;
  for (const group_experts& each : experts) most = std::max(most, each.held.size());
  // The limits of every level, because a level learns of an objection only among its own ranks.
  const std::size_t column = groups.largest_column();
  for (std::size_t g = 0; g < experts.size(); ++g) {
    if (const std::size_t ranks_in_group = groups.groups[g].size();
        config.output_attachment != 0 && ranks_in_group > most_attaching_ranks)
      return concat("output_attachment is ", config.output_attachment, " and the group of ",
                    groups.groups[g].front(), " has ", ranks_in_group, " ranks, expected at most ",
                    most_attaching_ranks);
    const level_configs levels = configs_of_levels(
        config, groups, experts[g],
        {column, most,
         copies_in_group(groups, config.top_k, layout.shape == block_shape::by_rank)});
    if (const auto why = objection_to_level(levels.far, column, codec, far_layout))
      return concat("the level between groups cannot be made: ", why->text());
    if (const auto why = objection_to_level(levels.near, groups.groups[g].size(), codec, layout))
      return concat("the level within groups cannot be made: ", why->text());
  }
  return {};
}

}  // namespace peerbus::moe::detail
