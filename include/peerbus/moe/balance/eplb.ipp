// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include <peerbus/core/error.hpp>
#include <peerbus/moe/balance/eplb.hpp>
#include <peerbus/moe/balance/load.hpp>

namespace peerbus::moe {

namespace detail {

/// Returns the index of the pack for each of `loads`. Each of `packs` packs takes equally many.
/// Items are packed from the heaviest to the lightest, each into the lightest pack that has room.
/// An item's place in its pack is the number of items packed into it before.
struct packed_items {
  std::vector<std::uint32_t> pack;
  std::vector<std::uint32_t> place;
};

inline packed_items pack_evenly(std::span<const float> loads, std::size_t packs) {
  const std::size_t room = loads.size() / packs;
  packed_items result{std::vector<std::uint32_t>(loads.size()),
                      std::vector<std::uint32_t>(loads.size())};
  if (room == 1) {
    std::iota(result.pack.begin(), result.pack.end(), 0U);
    return result;
  }
  std::vector<std::uint32_t> order(loads.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::sort(order, {}, [&](std::uint32_t i) { return std::pair{-loads[i], i}; });

  // A heap whose front is the lightest pack, the first of equal ones.
  std::vector<std::pair<float, std::uint32_t>> lightest(packs);
  for (std::uint32_t p = 0; p < packs; ++p) lightest[p].second = p;
  std::vector<std::uint32_t> filled(packs);
  for (const std::uint32_t item : order) {
    std::ranges::pop_heap(lightest, std::greater{});
    auto& [load, pack] = lightest.back();
    result.pack[item] = pack;
    result.place[item] = filled[pack]++;
    load += loads[item];
    if (filled[pack] == room)
      lightest.pop_back();
    else
      std::ranges::push_heap(lightest, std::greater{});
  }
  return result;
}

/// The replicas of all experts. The first replicas of the experts come first. Each replica has its
/// expert, its number among the replicas of that expert, and a load.
struct replicas {
  std::vector<std::uint32_t> expert;
  std::vector<std::uint32_t> number;
  std::vector<float> load;
};

/// Makes `count` replicas of experts with `loads`. Each further replica is for the expert whose
/// replicas have the largest load.
inline replicas replicate(std::span<const float> loads, std::size_t count) {
  const std::size_t experts = loads.size();
  replicas result{std::vector<std::uint32_t>(count), std::vector<std::uint32_t>(count),
                  std::vector<float>(count)};
  std::iota(result.expert.begin(), result.expert.begin() + static_cast<std::ptrdiff_t>(experts),
            0U);
  std::vector<std::uint32_t> counts(experts, 1);
  // A heap whose front is the heaviest share, the first of equal ones.
  const auto is_behind = [](const auto& a, const auto& b) {
    return std::tie(a.first, b.second) < std::tie(b.first, a.second);
  };
  std::vector<std::pair<float, std::uint32_t>> heaviest;
  heaviest.reserve(experts);
  for (std::uint32_t e = 0; e < experts; ++e) heaviest.emplace_back(loads[e], e);
  std::ranges::make_heap(heaviest, is_behind);
  for (std::size_t i = experts; i < count; ++i) {
    std::ranges::pop_heap(heaviest, is_behind);
    auto& [share, expert] = heaviest.back();
    result.expert[i] = expert;
    result.number[i] = counts[expert]++;
    share = loads[expert] / static_cast<float>(counts[expert]);
    std::ranges::push_heap(heaviest, is_behind);
  }
  for (std::size_t i = 0; i < count; ++i)
    result.load[i] = loads[result.expert[i]] / static_cast<float>(counts[result.expert[i]]);
  return result;
}

/// Checks that the algorithm can plan `experts` in `shape`.
/// Throws: `error` invalid_argument if not.
inline void require_shape(std::size_t experts, const eplb_shape& shape, bool is_hierarchical) {
  const auto wrong = [](std::initializer_list<peerbus::detail::text_part> parts) {
    return error{errc::invalid_argument, concat({"eplb: ", concat(parts)})};
  };
  if (shape.ranks == 0) throw wrong({"0 ranks (num_gpus), expected 1 or more"});
  if (shape.slots % shape.ranks != 0)
    throw wrong({shape.slots, " slots (num_replicas) on ", shape.ranks,
                 " ranks (num_gpus), expected a multiple of the ranks"});
  if (shape.slots < experts)
    throw wrong({shape.slots, " slots (num_replicas) for ", experts,
                 " experts, expected a slot for each expert or more"});
  if (shape.slots > UINT32_MAX) throw wrong({shape.slots, " slots, expected less than 2^32"});
  if (!is_hierarchical) return;
  if (experts % shape.groups != 0)
    throw wrong({experts, " experts in ", shape.groups,
                 " groups (num_groups), expected a multiple of the groups"});
  if (shape.ranks % shape.nodes != 0)
    throw wrong({shape.ranks, " ranks (num_gpus) in ", shape.nodes,
                 " nodes (num_nodes), expected a multiple of the nodes"});
}

}  // namespace detail

PEERBUS_INLINE slot_plan plan_eplb(std::span<const double> loads, const eplb_shape& shape) {
  detail::require_loads("eplb", loads);
  if (shape.groups == 0 || shape.nodes == 0)
    throw error{errc::invalid_argument,
                concat("eplb: ", shape.groups, " groups (num_groups) and ", shape.nodes,
                       " nodes (num_nodes), expected 1 or more")};
  const bool is_hierarchical = shape.groups % shape.nodes == 0;
  const std::size_t groups = is_hierarchical ? shape.groups : 1;
  const std::size_t nodes = is_hierarchical ? shape.nodes : 1;
  detail::require_shape(loads.size(), shape, is_hierarchical);
  const std::size_t group_experts = loads.size() / groups;
  const std::size_t node_experts = loads.size() / nodes;
  const std::size_t node_slots = shape.slots / nodes;
  const std::size_t rank_slots = shape.slots / shape.ranks;

  // Groups to nodes.
  std::vector<float> group_loads(groups);
  for (std::size_t e = 0; e < loads.size(); ++e)
    group_loads[e / group_experts] += static_cast<float>(loads[e]);
  const detail::packed_items of_groups = detail::pack_evenly(group_loads, nodes);
  std::vector<std::uint32_t> experts(loads.size());  // One node's behind the other's.
  std::vector<float> expert_loads(loads.size());
  for (std::uint32_t e = 0; e < loads.size(); ++e) {
    const std::size_t group = e / group_experts;
    const std::size_t i =
        (of_groups.pack[group] * (groups / nodes) + of_groups.place[group]) * group_experts +
        e % group_experts;
    experts[i] = e;
    expert_loads[i] = static_cast<float>(loads[e]);
  }

  // Replicas inside each node, then to its ranks.
  std::vector<std::uint32_t> physical_to_logical(shape.slots);
  std::vector<std::uint32_t> replica_of_slot(shape.slots);
  for (std::size_t n = 0; n < nodes; ++n) {
    const detail::replicas made = detail::replicate(
        std::span{expert_loads}.subspan(n * node_experts, node_experts), node_slots);
    const detail::packed_items packed = detail::pack_evenly(made.load, shape.ranks / nodes);
    for (std::size_t i = 0; i < node_slots; ++i) {
      const std::size_t slot = n * node_slots + packed.pack[i] * rank_slots + packed.place[i];
      physical_to_logical[slot] = experts[n * node_experts + made.expert[i]];
      replica_of_slot[slot] = made.number[i];
    }
  }
  return {std::move(physical_to_logical), loads.size(), replica_of_slot};
}

}  // namespace peerbus::moe
