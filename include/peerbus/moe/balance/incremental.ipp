// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <utility>

#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/balance/incremental.hpp>
#include <peerbus/moe/balance/load.hpp>
#include <peerbus/moe/balance/slot_search.hpp>
#include <peerbus/moe/config.hpp>

namespace peerbus::moe {

namespace detail {

/// Checks that `old_map` is legal for `experts` and `rank_count`.
/// Throws: `error` invalid_argument if not.
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

/// Checks that `loads` and `limits` are possible.
/// Throws: `error` invalid_argument if not.
inline void require_limits(std::span<const double> loads, const incremental_limits& limits) {
  require_loads("incremental", loads);
  if (!(limits.least_gain >= 0))
    throw error{errc::invalid_argument,
                concat("incremental: least_gain is ", limits.least_gain, ", expected 0 or more")};
}

/// The slots of the ranks among which experts move. `experts` is [slots]: the expert of each slot,
/// or the number of experts if the slot is vacant. `begins` is [ranks + 1]: the first slot of each
/// rank, then the end.
struct rank_slots {
  std::vector<std::uint32_t> experts;
  std::vector<std::uint32_t> begins{0};
};

/// Returns the slots of `search`, with the experts that stay on their ranks in their old slots.
inline std::vector<std::uint32_t> with_old_slots(const slot_search& search, const rank_slots& old,
                                                 std::uint32_t expert_count,
                                                 std::size_t fixed_slots) {
  const std::vector<std::uint32_t>& found = search.physical_to_logical();
  std::vector<std::uint32_t> result{old.experts};
  std::vector<std::size_t> held_by(expert_count, SIZE_MAX);  // The last rank that held an expert.
  std::vector<std::uint32_t> arrives;
  for (std::size_t rank = 0; rank + 1 < old.begins.size(); ++rank) {
    const std::size_t begin = old.begins[rank];
    const std::size_t end = old.begins[rank + 1];
    for (std::size_t s = begin; s < end; ++s)
      if (old.experts[s] != expert_count) held_by[old.experts[s]] = rank;
    arrives.clear();
    for (std::size_t s = begin; s < end; ++s)
      if (found[s] != expert_count && held_by[found[s]] != rank) arrives.push_back(found[s]);
    // Those that arrive take the slots of those that leave, then vacant ones.
    std::size_t next = 0;
    for (const bool was_vacant : {false, true})
      for (std::size_t s = begin + fixed_slots; s < end; ++s)
        if ((old.experts[s] == expert_count) == was_vacant && !search.holds(rank, old.experts[s]))
          result[s] = next < arrives.size() ? arrives[next++] : expert_count;
  }
  return result;
}

/// Returns the plan of `map`, in which replicas in fixed slots have the first numbers. Rank r has
/// the slots from `begins[r]` on.
inline slot_plan fixed_first(std::vector<std::uint32_t> map, std::size_t experts,
                             std::span<const std::uint32_t> begins, std::size_t fixed_slots) {
  std::vector<std::uint32_t> next(experts);
  std::vector<std::uint32_t> replica_of_slot(map.size());
  for (const bool are_fixed : {true, false})
    for (std::size_t rank = 0; rank + 1 < begins.size(); ++rank)
      for (std::uint32_t s = begins[rank]; s < begins[rank + 1]; ++s)
        if (map[s] != vacant && (s - begins[rank] < fixed_slots) == are_fixed)
          replica_of_slot[s] = next[map[s]]++;
  return {std::move(map), experts, replica_of_slot};
}

/// Changes `slots` within `limits`, and sets the numbers of `result`.
inline void improve(rank_slots& slots, std::span<const double> loads,
                    const incremental_limits& limits, incremental_plan& result) {
  const std::size_t count = slots.experts.size();
  if (count == 0) return;
  slot_search search{scaled_loads(loads), slots.experts, slots.begins, limits.fixed_slots};
  result.before = result.after = search.balancedness();
  const std::size_t most_moves = std::min(limits.most_moves, count);
  // Most changes move something. Those that do not bring an expert home, or on to another slot.
  for (std::size_t i = 0; i < 2 * count && search.balancedness() < limits.enough_balancedness; ++i)
    if (!search.take_step(most_moves)) break;
  search.bring_back(slots.experts);
  if (search.moves() == 0 || search.balancedness() - result.before < limits.least_gain) return;
  result.moves = search.moves();
  result.after = search.balancedness();
  slots.experts =
      with_old_slots(search, slots, static_cast<std::uint32_t>(loads.size()), limits.fixed_slots);
}

}  // namespace detail

PEERBUS_INLINE incremental_plan plan_incremental(std::span<const double> loads,
                                                 std::span<const std::uint32_t> old_map,
                                                 std::size_t rank_count,
                                                 const incremental_limits& limits) {
  detail::require_limits(loads, limits);
  detail::require_map(old_map, loads.size(), rank_count);
  if (limits.fixed_slots > old_map.size() / rank_count)
    throw error{errc::invalid_argument, concat("incremental: fixed_slots is ", limits.fixed_slots,
                                               ", expected no more than the slots of a rank, ",
                                               old_map.size() / rank_count)};
  std::vector<std::uint32_t> old{old_map.begin(), old_map.end()};
  detail::rank_slots slots{old, detail::equal_begins(old.size(), rank_count)};
  incremental_plan result{.plan{{}, 0}, .old_map = std::move(old)};
  detail::improve(slots, loads, limits, result);
  result.plan =
      detail::fixed_first(std::move(slots.experts), loads.size(), slots.begins, limits.fixed_slots);
  return result;
}

PEERBUS_INLINE incremental_plan plan_incremental(std::span<const double> loads,
                                                 const expert_map& in_use,
                                                 const incremental_limits& limits) {
  detail::require_limits(loads, limits);
  if (loads.size() != in_use.experts())
    throw error{errc::invalid_argument, concat("incremental: loads of ", loads.size(),
                                               " experts, expected ", in_use.experts())};
  std::vector<double> living{loads.begin(), loads.end()};
  for (std::size_t e = 0; e < living.size(); ++e)
    if (in_use.is_lost(e)) living[e] = 0;
  const auto nobody = static_cast<std::uint32_t>(living.size());
  std::vector<std::uint32_t> begins{0};
  detail::rank_slots slots;
  std::vector<std::uint32_t> old;
  std::vector<std::size_t> numbers;  // In the map, of `slots`.
  for (const rank_id rank : all_ranks{in_use.ranks()}) {
    for (const std::uint32_t expert : in_use.held_by(rank)) {
      if (!in_use.is_gone(rank)) {
        numbers.push_back(old.size());
        slots.experts.push_back(expert == vacant ? nobody : expert);
      }
      old.push_back(expert);
    }
    begins.push_back(static_cast<std::uint32_t>(old.size()));
    if (slots.experts.size() != slots.begins.back())
      slots.begins.push_back(static_cast<std::uint32_t>(slots.experts.size()));
  }
  incremental_plan result{.plan{{}, 0}, .old_map = old};
  detail::improve(slots, living, limits, result);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    old[numbers[i]] = slots.experts[i] == nobody ? vacant : slots.experts[i];
  result.plan = detail::fixed_first(std::move(old), living.size(), begins, limits.fixed_slots);
  return result;
}

PEERBUS_INLINE incremental_plan plan_incremental(const expert_load& counted,
                                                 const expert_map& in_use,
                                                 const incremental_limits& limits) {
  counted.require_counted_with(in_use);
  const auto rows = counted.rows_of_experts();
  return plan_incremental(sum_of_loads(rows, rows.size()), in_use, limits);
}

}  // namespace peerbus::moe
