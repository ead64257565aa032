// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/moe/balance/expert_load.hpp>
#include <peerbus/moe/balance/slot_plan.hpp>
#include <peerbus/moe/expert_map.hpp>

namespace peerbus::moe {

/// The limits of `plan_incremental`.
struct incremental_limits {
  double least_gain = 0.01;            ///< least gain of balancedness; below it the old map stays
  std::size_t most_moves = SIZE_MAX;   ///< experts that come to a rank that does not hold them
  std::size_t fixed_slots = 0;         ///< the first slots of each rank, whose experts stay
  double enough_balancedness = 0.999;  ///< the balancedness at which the search ends
};

/// A plan that begins with an old map.
struct incremental_plan {
  slot_plan plan;                      ///< the old map, changed by `moves` moves
  std::vector<std::uint32_t> old_map;  ///< the expert of each slot before the moves
  std::size_t moves = 0;  ///< slots that get another expert, whose weights must be copied
  double before = 1;      ///< balancedness of the old map
  double after = 1;       ///< balancedness of the plan, `before` if nothing moves
};

/// Plans one layer by few changes of the map in use. `loads` is [experts]. `old_map` is [slots],
/// the expert of each slot, in which no rank holds an expert twice. Each change lightens the
/// hottest rank: two ranks exchange experts, or a slot of an expert that has several goes to an
/// expert of the hottest rank. The changes that gain most per move come first, so that a small
/// budget is spent well. An expert that stays on its rank stays in its slot. No rank of the plan
/// holds an expert twice. The replicas of an expert are numbered in the order of their slots, but
/// replicas in fixed slots come first.
///
/// Throws: `error` invalid_argument if a load is negative or not finite, if `least_gain` is
/// negative or not a number, if a rank has fewer than `fixed_slots` slots, or if `old_map` is
/// illegal: its slots are no multiple of `rank_count`, a slot names no expert, or an expert has no
/// slot, or two slots of one rank.
///
/// Cost: allocates ranks x experts bytes; each change looks at each slot for each slot of a rank.
///
/// Threads: any; the result depends on the arguments only, and is the same on all machines.
[[nodiscard]] incremental_plan plan_incremental(std::span<const double> loads,
                                                std::span<const std::uint32_t> old_map,
                                                std::size_t rank_count,
                                                const incremental_limits& limits = {});

///@{
/// Plans as the overload for a table does, for the experts of an exchange (`exchange::placement`),
/// whose ranks may have any numbers of slots. A vacant slot may take an expert or a replica of one.
/// Ranks that are gone keep their slots unchanged and count for nothing. The loads of experts whose
/// last replica is gone do not count. A rank with fewer than `fixed_slots` slots keeps all its
/// experts. With `counted`, the loads are the rows of its window.
///
/// Throws: `error` invalid_argument for wrong loads or limits as that overload, if there are more
/// or fewer loads than experts, or if the rows were counted with another map
/// (`expert_load::move_to`).
///
/// Cost, threads: as that overload.
[[nodiscard]] incremental_plan plan_incremental(std::span<const double> loads,
                                                const expert_map& in_use,
                                                const incremental_limits& limits = {});
[[nodiscard]] incremental_plan plan_incremental(const expert_load& counted,
                                                const expert_map& in_use,
                                                const incremental_limits& limits = {});
///@}

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/balance/incremental.ipp>  // IWYU pragma: keep
#endif
