// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <numeric>
#include <utility>

#include <peerbus/moe/balance/slot_search.hpp>

namespace peerbus::moe::detail {

inline constexpr std::uint32_t no_slot = UINT32_MAX;

/// Returns the loads with that of vacant slots, which is 0.
inline std::vector<std::uint32_t> with_nobody(std::span<const std::uint32_t> loads) {
  std::vector<std::uint32_t> all{loads.begin(), loads.end()};
  all.push_back(0);
  return all;
}

PEERBUS_INLINE std::vector<std::uint32_t> equal_begins(std::size_t slots, std::size_t rank_count) {
  std::vector<std::uint32_t> begins(rank_count + 1);
  for (std::size_t r = 0; r <= rank_count; ++r)
    begins[r] = static_cast<std::uint32_t>(slots / rank_count * r);
  return begins;
}

PEERBUS_INLINE std::vector<std::uint32_t> scaled_loads(std::span<const double> loads) {
  std::vector<std::uint32_t> scaled(loads.size());
  const double most = *std::ranges::max_element(loads);
  if (most <= 0) return scaled;
  // Divided by the largest first, so that no sum is infinite.
  double sum = 0;
  for (const double load : loads) sum += load / most;
  for (std::size_t e = 0; e < loads.size(); ++e)
    scaled[e] = static_cast<std::uint32_t>(loads[e] / most / sum * 0x1p30);
  return scaled;
}

PEERBUS_INLINE slot_search::slot_search(std::span<const std::uint32_t> scaled,
                                        std::vector<std::uint32_t> physical_to_logical,
                                        std::vector<std::uint32_t> begins, std::size_t fixed_slots)
    : loads_{with_nobody(scaled)},
      nobody_{static_cast<std::uint32_t>(scaled.size())},
      experts_{std::move(physical_to_logical)},
      ranks_(experts_.size()),
      counts_(loads_.size()),
      shares_(loads_.size()),
      first_(loads_.size(), no_slot),
      next_(experts_.size(), no_slot),
      begins_{std::move(begins)},
      rank_load_(begins_.size() - 1),
      held_(rank_load_.size() * loads_.size()),
      fixed_slots_{fixed_slots} {
  for (std::uint32_t r = 0; r < rank_load_.size(); ++r) {
    std::uint8_t* const held = held_.data() + r * loads_.size();
    for (std::uint32_t s = begins_[r]; s < begins_[r + 1]; ++s) {
      const std::uint32_t expert = experts_[s];
      ranks_[s] = r;
      held[expert] = is_held | was_held;
      next_[s] = std::exchange(first_[expert], s);
      ++counts_[expert];
    }
    held[nobody_] = was_held;  // Never held, so that it may come again, and that is no move.
  }
  spares_.reserve(experts_.size());
  for (std::uint32_t e = 0; e < loads_.size(); ++e) shares_[e] = share_of(e, counts_[e]);
  for (std::uint32_t s = 0; s < experts_.size(); ++s) rank_load_[ranks_[s]] += shares_[experts_[s]];
}

PEERBUS_INLINE double slot_search::balancedness() const noexcept {
  const std::int64_t most = rank_load_[hottest()];
  if (most == 0) return 1;
  const std::int64_t sum = std::accumulate(rank_load_.begin(), rank_load_.end(), std::int64_t{0});
  return static_cast<double>(sum) /
         static_cast<double>(most * static_cast<std::int64_t>(rank_load_.size()));
}

PEERBUS_INLINE std::size_t slot_search::hottest() const noexcept {
  return static_cast<std::size_t>(std::ranges::max_element(rank_load_) - rank_load_.begin());
}

PEERBUS_INLINE int slot_search::moves_of(std::size_t rank, std::uint32_t arrives,
                                         std::uint32_t leaves) const noexcept {
  const std::uint8_t* const held = held_.data() + rank * loads_.size();
  return ((held[leaves] & was_held) != 0 ? 1 : 0) - ((held[arrives] & was_held) != 0 ? 1 : 0);
}

/// Returns whether `a` gains more per move than `b`. A step without a move, in which an expert
/// returns to its former rank, counts as one move.
PEERBUS_INLINE bool slot_search::is_better(const step& a, const step& b) noexcept {
  return a.change * std::max(b.moves, 1) < b.change * std::max(a.moves, 1);
}

/// Returns whether a step with this change would be better than `best` if it were one move.
PEERBUS_INLINE bool slot_search::can_beat(std::int64_t change, const step& best) noexcept {
  return change * std::max(best.moves, 1) < best.change;
}

PEERBUS_INLINE void slot_search::look_for_exchange(std::uint32_t hot, std::int64_t budget,
                                                   step& best) const {
  const std::uint32_t expert = experts_[hot];
  const std::size_t hot_rank = ranks_[hot];
  for (std::size_t rank = 0; rank < rank_load_.size(); ++rank) {
    const std::int64_t room = rank_load_[hot_rank] - rank_load_[rank];
    // A load of half the room would change the sum by -room^2 / 2, and nothing changes it more.
    if (room <= 0 || !can_beat(-room * room / 2, best) || holds(rank, expert)) continue;
    for (std::size_t s = begins_[rank] + fixed_slots_; s < begins_[rank + 1]; ++s) {
      const std::uint32_t other = experts_[s];
      const std::int64_t load = std::int64_t{shares_[expert]} - shares_[other];
      const std::int64_t change = 2 * load * (load - room);
      if (load <= 0 || load >= room || !can_beat(change, best) || holds(hot_rank, other)) continue;
      const step candidate{change,
                           moves_of(rank, expert, other) + moves_of(hot_rank, other, expert), hot,
                           static_cast<std::uint32_t>(s), true};
      if (candidate.moves <= budget && is_better(candidate, best)) best = candidate;
    }
  }
}

PEERBUS_INLINE void slot_search::look_for_spares() {
  spares_.clear();
  for (std::uint32_t e = 0; e < loads_.size(); ++e) {
    if (counts_[e] < (e == nobody_ ? 1 : 2)) continue;
    const std::uint32_t others = counts_[e] - 1;
    const std::int64_t more = std::int64_t{share_of(e, others)} - shares_[e];
    std::int64_t change = 0;
    for (std::uint32_t s = first_[e]; s != no_slot; s = next_[s])
      change += more * (2 * rank_load_[ranks_[s]] + more);
    for (std::uint32_t s = first_[e]; s != no_slot; s = next_[s]) {
      if (s - begins_[ranks_[s]] < fixed_slots_) continue;
      const std::int64_t load = rank_load_[ranks_[s]];
      spares_.push_back({s, others, load, shares_[e], more, change - more * (2 * load + more)});
    }
  }
}

/// Completes `candidate`, a copy to the slot `from`, for the ranks that hold both experts: their
/// loads grow from what is left once the copied expert's share is smaller by `less`. Returns false
/// if a rank becomes as hot as the hottest.
PEERBUS_INLINE bool slot_search::completes_copy(const spare& from, std::int64_t less,
                                                step& candidate) const {
  if (experts_[from.slot] == nobody_) return true;  // Nobody takes over its load.
  const std::uint32_t expert = experts_[candidate.hot];
  const std::int64_t limit = rank_load_[ranks_[candidate.hot]];
  for (std::uint32_t s = first_[experts_[from.slot]]; s != no_slot; s = next_[s]) {
    if (s == from.slot) continue;
    const bool has_both = holds(ranks_[s], expert);
    if (rank_load_[ranks_[s]] + from.more - (has_both ? less : 0) >= limit) return false;
    if (has_both) candidate.change -= 2 * from.more * less;
  }
  return true;
}

PEERBUS_INLINE void slot_search::look_for_copy(std::uint32_t hot, std::int64_t budget,
                                               step& best) const {
  const std::uint32_t expert = experts_[hot];
  const std::uint32_t count = counts_[expert];
  const std::int64_t limit = rank_load_[ranks_[hot]];
  const std::int64_t share = share_of(expert, count + 1);
  const std::int64_t less = shares_[expert] - share;
  if (less == 0) return;
  std::int64_t relief = 0;
  for (std::uint32_t s = first_[expert]; s != no_slot; s = next_[s])
    relief += less * (less - 2 * rank_load_[ranks_[s]]);
  for (const spare& from : spares_) {
    const std::int64_t added = share - from.share;
    const std::int64_t change = relief + added * (2 * from.load + added) + from.change;
    // The most that ranks save which hold both experts. Few candidates are looked at further.
    const std::int64_t saved = 2 * from.more * less * std::min(count, from.others);
    if (!can_beat(change - saved, best) || from.load + added >= limit) continue;
    const std::size_t rank = ranks_[from.slot];
    if (holds(rank, expert)) continue;
    step candidate{change, moves_of(rank, expert, experts_[from.slot]), hot, from.slot, false};
    if (candidate.moves <= budget && completes_copy(from, less, candidate) &&
        is_better(candidate, best))
      best = candidate;
  }
}

PEERBUS_INLINE void slot_search::set_share(std::uint32_t expert, std::uint32_t share) {
  const std::int64_t change = std::int64_t{share} - shares_[expert];
  for (std::uint32_t s = first_[expert]; s != no_slot; s = next_[s])
    rank_load_[ranks_[s]] += change;
  shares_[expert] = share;
}

PEERBUS_INLINE void slot_search::set_expert(std::uint32_t slot, std::uint32_t expert) {
  const std::uint32_t before = experts_[slot];
  std::uint32_t* link = &first_[before];
  while (*link != slot) link = &next_[*link];
  *link = next_[slot];
  next_[slot] = std::exchange(first_[expert], slot);
  experts_[slot] = expert;
  std::uint8_t* const held = held_.data() + ranks_[slot] * loads_.size();
  held[before] &= static_cast<std::uint8_t>(~is_held);
  if (expert != nobody_) held[expert] |= is_held;
  rank_load_[ranks_[slot]] += std::int64_t{shares_[expert]} - shares_[before];
}

PEERBUS_INLINE bool slot_search::take_step(std::size_t most_moves) {
  const std::size_t rank = hottest();
  const std::uint32_t begin = begins_[rank];
  const auto budget = static_cast<std::int64_t>(most_moves - moves_);
  step best;
  look_for_spares();
  for (std::uint32_t hot = begin; hot < begins_[rank + 1]; ++hot) {
    look_for_copy(hot, budget, best);
    if (hot - begin >= fixed_slots_) look_for_exchange(hot, budget, best);
  }
  if (best.change == 0) return false;
  moves_ += static_cast<std::size_t>(best.moves);
  const std::uint32_t expert = experts_[best.hot];
  const std::uint32_t other = experts_[best.other];
  if (best.exchanges) {
    set_expert(best.hot, other);
    set_expert(best.other, expert);
  } else {
    set_expert(best.other, expert);
    set_share(expert, share_of(expert, ++counts_[expert]));
    set_share(other, share_of(other, --counts_[other]));
  }
  return true;
}

PEERBUS_INLINE void slot_search::bring_back(std::span<const std::uint32_t> before) {
  for (std::uint32_t s = 0; s < experts_.size(); ++s) {
    const std::uint32_t expert = before[s];
    if (experts_[s] != nobody_ || expert == nobody_ || holds(ranks_[s], expert)) continue;
    const std::uint32_t share = share_of(expert, counts_[expert] + 1);
    if (rank_load_[ranks_[s]] + share >= rank_load_[hottest()]) continue;
    set_expert(s, expert);
    set_share(expert, share);
    ++counts_[expert];
    --counts_[nobody_];
  }
}

}  // namespace peerbus::moe::detail
