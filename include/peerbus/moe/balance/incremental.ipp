// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include <peerbus/core/error.hpp>
#include <peerbus/moe/balance/incremental.hpp>
#include <peerbus/moe/balance/load.hpp>
#include <peerbus/moe/balance/slot_search.hpp>

namespace peerbus::moe {

namespace detail {

/// Throws: `error` invalid_argument unless `old_map` is legal for `experts` and `rank_count`.
inline void require_map(std::span<const std::uint32_t> old_map, std::size_t experts,
                        std::size_t rank_count) {
  const auto wrong = [](std::initializer_list<peerbus::detail::text_part> parts) {
    return error{errc::invalid_argument, concat({"incremental: ", concat(parts)})};
  };
  const std::size_t slots = old_map.size();
  if (rank_count == 0 || slots % rank_count != 0)
    throw wrong({"old_map has ", slots, " slots on ", rank_count,
                 " ranks, expected 1 rank or more, and a multiple of the ranks"});
  if (slots < experts)
    throw wrong({"old_map has ", slots, " slots for ", experts,
                 " experts, expected a slot for each expert or more"});
  if (slots > UINT32_MAX / 2 || rank_count > UINT32_MAX / experts)
    throw wrong({"old_map has ", slots, " slots on ", rank_count, " ranks for ", experts,
                 " experts, expected less than 2^31 slots, and ranks x experts below 2^32"});
  std::vector<std::size_t> last(experts, SIZE_MAX);  // The rank of an expert's latest slot.
  for (std::size_t s = 0; s < slots; ++s) {
    const std::size_t rank = s / (slots / rank_count);
    if (old_map[s] >= experts)
      throw wrong({"old_map[", s, "] is ", old_map[s], ", expected 0 to ", experts - 1});
    if (std::exchange(last[old_map[s]], rank) == rank)
      throw wrong({"old_map has expert ", old_map[s], " twice on rank ", rank,
                   ", expected each expert once on a rank"});
  }
  for (std::size_t e = 0; e < experts; ++e)
    if (last[e] == SIZE_MAX) throw wrong({"old_map has no slot of expert ", e, ", expected one"});
}

/// Returns the map of `search`, with the experts that stay on their ranks in their old slots.
inline std::vector<std::uint32_t> with_old_slots(const slot_search& search,
                                                 std::span<const std::uint32_t> old_map,
                                                 std::size_t rank_count, std::size_t experts) {
  const std::vector<std::uint32_t>& found = search.physical_to_logical();
  const std::size_t rank_slots = old_map.size() / rank_count;
  std::vector<std::uint32_t> result{old_map.begin(), old_map.end()};
  std::vector<std::size_t> held_by(experts, SIZE_MAX);  // The last rank that held an expert.
  for (std::size_t rank = 0; rank < rank_count; ++rank) {
    const std::size_t begin = rank * rank_slots;
    for (std::size_t s = begin; s < begin + rank_slots; ++s) held_by[old_map[s]] = rank;
    std::size_t next = begin;
    for (std::size_t s = begin; s < begin + rank_slots; ++s) {
      if (search.holds(rank, old_map[s])) continue;
      while (held_by[found[next]] == rank) ++next;
      result[s] = found[next++];
    }
  }
  return result;
}

/// Returns the plan of `map`, in which replicas in fixed slots have the first numbers.
inline slot_plan fixed_first(std::vector<std::uint32_t> map, std::size_t experts,
                             std::size_t rank_slots, std::size_t fixed_slots) {
  std::vector<std::uint32_t> next(experts);
  std::vector<std::uint32_t> replica_of_slot(map.size());
  for (const bool are_fixed : {true, false})
    for (std::size_t s = 0; s < map.size(); ++s)
      if ((s % rank_slots < fixed_slots) == are_fixed) replica_of_slot[s] = next[map[s]]++;
  return {std::move(map), experts, replica_of_slot};
}

}  // namespace detail

PEERBUS_INLINE incremental_plan plan_incremental(std::span<const double> loads,
                                                 std::span<const std::uint32_t> old_map,
                                                 std::size_t rank_count,
                                                 const incremental_limits& limits) {
  detail::require_loads("incremental", loads);
  if (!(limits.least_gain >= 0))
    throw error{errc::invalid_argument,
                concat("incremental: least_gain is ", limits.least_gain, ", expected 0 or more")};
  detail::require_map(old_map, loads.size(), rank_count);
  const std::size_t rank_slots = old_map.size() / rank_count;
  if (limits.fixed_slots > rank_slots)
    throw error{errc::invalid_argument,
                concat("incremental: fixed_slots is ", limits.fixed_slots,
                       ", expected no more than the slots of a rank, ", rank_slots)};
  std::vector<std::uint32_t> map{old_map.begin(), old_map.end()};
  detail::slot_search search{detail::scaled_loads(loads), map, rank_count, limits.fixed_slots};
  const double before = search.balancedness();
  const std::size_t most_moves = std::min(limits.most_moves, map.size());
  // Each change moves something, except for one that brings an expert home.
  for (std::size_t i = 0; i < 2 * map.size() && search.balancedness() < limits.enough_balancedness;
       ++i)
    if (!search.take_step(most_moves)) break;
  std::size_t moves = search.moves();
  double after = search.balancedness();
  if (moves == 0 || after - before < limits.least_gain) {
    moves = 0;
    after = before;
  } else {
    map = detail::with_old_slots(search, old_map, rank_count, loads.size());
  }
  return {detail::fixed_first(std::move(map), loads.size(), rank_slots, limits.fixed_slots), moves,
          before, after};
}

}  // namespace peerbus::moe
