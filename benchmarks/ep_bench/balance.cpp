// SPDX-License-Identifier: MIT
#include "ep_bench/balance.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/balance.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/layout.hpp>

#include "ep_bench/gate.hpp"

namespace ep_bench {
namespace {

/// Returns the rows that the routing of all ranks sends to each expert.
std::vector<double> routed_rows(const options& chosen, std::size_t ranks) {
  std::vector<double> rows(chosen.experts);
  const gate all{chosen, ranks};
  for (std::size_t rank = 0; rank < ranks; ++rank)
    for (const std::int32_t expert : all.choose(rank).experts)
      ++rows[static_cast<std::size_t>(expert)];
  return rows;
}

/// Returns the expert of each place before anything is known of loads: each rank has those that are
/// dealt to it, behind as many of the experts before them as it has places left.
std::vector<std::uint32_t> dealt(std::size_t experts, std::size_t ranks, std::size_t per_rank) {
  const peerbus::moe::expert_placement placement{experts, ranks};
  std::vector<std::uint32_t> expert_of;
  expert_of.reserve(ranks * per_rank);
  for (const peerbus::rank_id rank : peerbus::all_ranks{ranks}) {
    const std::size_t first = placement.first(rank) + experts - (per_rank - placement.count(rank));
    for (std::size_t i = 0; i < per_rank; ++i)
      expert_of.push_back(static_cast<std::uint32_t>((first + i) % experts));
  }
  return expert_of;
}

/// Leaves all places of a rank vacant but the first of each expert, as exchanges have no expert
/// twice at a rank.
void vacate_duplicates(std::span<std::uint32_t> places) {
  for (std::size_t i = 1; i < places.size(); ++i) {
    const auto before = places.first(i);
    if (std::ranges::find(before, places[i]) != before.end()) places[i] = peerbus::moe::vacant;
  }
}

}  // namespace

options balanced(options chosen, std::size_t ranks) {
  if (chosen.balance == "none") return chosen;
  const std::size_t per_rank =
      std::min((chosen.experts + ranks - 1) / ranks + chosen.spare, chosen.experts);
  if (chosen.balance == "incremental") {
    chosen.physical_to_logical = dealt(chosen.experts, ranks, per_rank);
    return chosen;
  }
  const std::vector<double> loads = routed_rows(chosen, ranks);
  const auto plan =
      chosen.balance == "eplb"
          ? peerbus::moe::plan_eplb(loads, {.slots = ranks * per_rank, .ranks = ranks})
          : peerbus::moe::plan_spread(loads, {.ranks = ranks, .slots_per_rank = per_rank});
  chosen.physical_to_logical.assign(plan.physical_to_logical().begin(),
                                    plan.physical_to_logical().end());
  for (std::size_t first = 0; first < chosen.physical_to_logical.size(); first += per_rank)
    vacate_duplicates(std::span{chosen.physical_to_logical}.subspan(first, per_rank));
  return chosen;
}

rebalancer::rebalancer(const options& chosen, const peerbus::moe::expert_map& map)
    : rows_(chosen.physical_to_logical.size()), load_{map, chosen.replan_after} {}

std::string rebalancer::add(const oracle& truth) {
  load_.add(rows_);
  for (std::size_t place = 0; place < rows_.size(); ++place)
    if (rows_[place] != truth.rows_of(place).size())
      return peerbus::concat("place ", place, " counts ", rows_[place], " rows, expected ",
                             truth.rows_of(place).size());
  return {};
}

std::optional<replan> rebalancer::plan(std::size_t steps, const peerbus::moe::expert_map& in_use,
                                       options& chosen) const {
  if (steps % chosen.replan_after != 0) return std::nullopt;
  const peerbus::moe::incremental_plan found =
      peerbus::moe::plan_incremental(load_, in_use, {.most_moves = chosen.moves});
  if (found.moves == 0) return std::nullopt;
  const auto places = found.plan.physical_to_logical();
  chosen.physical_to_logical.assign(places.begin(), places.end());
  return replan{steps, found.moves, found.before, found.after};
}

}  // namespace ep_bench
