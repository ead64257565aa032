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
#include <peerbus/moe/balance/load.hpp>
#include <peerbus/moe/balance/slot_search.hpp>
#include <peerbus/moe/balance/spread.hpp>

namespace peerbus::moe {

namespace detail {

/// Returns how many replicas each expert gets of `slots`, at most one for each rank: [experts].
inline std::vector<std::uint32_t> spread_counts(std::span<const std::uint32_t> loads,
                                                std::size_t slots, std::size_t rank_count) {
  std::vector<std::uint32_t> counts(loads.size(), 1);
  // A heap whose front is the heaviest share, the first of equal ones.
  const auto is_behind = [](const auto& a, const auto& b) {
    return std::tie(a.first, b.second) < std::tie(b.first, a.second);
  };
  std::vector<std::pair<std::uint32_t, std::uint32_t>> heaviest;
  heaviest.reserve(loads.size());
  if (rank_count > 1)
    for (std::uint32_t e = 0; e < loads.size(); ++e) heaviest.emplace_back(loads[e], e);
  std::ranges::make_heap(heaviest, is_behind);
  for (std::size_t made = loads.size(); made < slots; ++made) {
    std::ranges::pop_heap(heaviest, is_behind);
    auto& [share, expert] = heaviest.back();
    share = loads[expert] / ++counts[expert];
    if (counts[expert] == rank_count)
      heaviest.pop_back();
    else
      std::ranges::push_heap(heaviest, is_behind);
  }
  return counts;
}

/// Ranks that are filled with different experts.
class rank_filler {
 public:
  rank_filler(const spread_shape& shape, std::size_t expert_count)
      : slots_(shape.ranks * shape.slots_per_rank),
        used_(shape.ranks),
        held_(shape.ranks * expert_count),
        lightest_(shape.ranks),
        rank_slots_{shape.slots_per_rank},
        experts_{expert_count} {
    for (std::uint32_t r = 0; r < shape.ranks; ++r) lightest_[r].second = r;
  }

  /// Gives `count` replicas with load `share` to the lightest ranks that have room.
  void place(std::uint32_t expert, std::uint32_t count, std::uint32_t share) {
    taken_.clear();
    for (; count > 0 && !lightest_.empty(); --count) {
      std::ranges::pop_heap(lightest_, std::greater{});
      taken_.push_back(lightest_.back());
      lightest_.pop_back();
    }
    for (auto& [load, rank] : taken_) {
      add(rank, expert);
      load += share;
      if (used_[rank] == rank_slots_) continue;
      lightest_.emplace_back(load, rank);
      std::ranges::push_heap(lightest_, std::greater{});
    }
    for (; count > 0; --count) make_room(expert);
  }

  /// Returns the expert of each slot, once all are filled.
  [[nodiscard]] std::vector<std::uint32_t>& slots() noexcept { return slots_; }

 private:
  [[nodiscard]] bool holds(std::size_t rank, std::size_t expert) const noexcept {
    return held_[rank * experts_ + expert] != 0;
  }
  void add(std::size_t rank, std::uint32_t expert) {
    slots_[rank * rank_slots_ + used_[rank]++] = expert;
    held_[rank * experts_ + expert] = 1;
  }

  /// Places `expert` although every rank with room holds it: a full rank without it gives one of
  /// its experts to a rank with room. A full rank has more experts other than `expert` than a rank
  /// with room, so that one of them is not held there.
  void make_room(std::uint32_t expert) {
    std::size_t open = 0;
    while (used_[open] == rank_slots_) ++open;
    std::size_t full = 0;
    while (holds(full, expert)) ++full;
    std::size_t slot = full * rank_slots_;
    while (holds(open, slots_[slot])) ++slot;
    const std::uint32_t leaves = std::exchange(slots_[slot], expert);
    held_[full * experts_ + expert] = 1;
    held_[full * experts_ + leaves] = 0;
    add(open, leaves);
    if (used_[open] == rank_slots_)
      std::erase_if(lightest_, [&](const auto& entry) { return entry.second == open; });
    std::ranges::make_heap(lightest_, std::greater{});
  }

  std::vector<std::uint32_t> slots_;
  std::vector<std::size_t> used_;   ///< slots of each rank
  std::vector<std::uint8_t> held_;  ///< [ranks, experts]
  /// The load of each rank that has room: a heap whose front is the lightest rank. If `make_room`
  /// exchanged experts of a rank, its load here is out of date until the search corrects it.
  std::vector<std::pair<std::uint64_t, std::uint32_t>> lightest_;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> taken_;
  std::size_t rank_slots_;
  std::size_t experts_;
};

/// Checks that `shape` has room for `experts`, and that all of the room is used.
/// Throws: `error` invalid_argument if not.
inline void require_shape(std::size_t experts, const spread_shape& shape) {
  const auto wrong = [](std::initializer_list<peerbus::detail::text_part> parts) {
    return error{errc::invalid_argument, concat({"spread: ", concat(parts)})};
  };
  if (shape.ranks == 0) throw wrong({"0 ranks, expected 1 or more"});
  if (shape.slots_per_rank > experts)
    throw wrong({shape.slots_per_rank, " slots per rank for ", experts,
                 " experts, expected no more than experts, because no rank holds one twice"});
  if (shape.ranks > UINT32_MAX / experts)
    throw wrong({shape.ranks, " ranks for ", experts, " experts, expected a product below 2^32"});
  if (shape.ranks * shape.slots_per_rank < experts)
    throw wrong({shape.ranks * shape.slots_per_rank, " slots (", shape.ranks, " ranks of ",
                 shape.slots_per_rank, ") for ", experts,
                 " experts, expected a slot for each expert or more"});
}

}  // namespace detail

PEERBUS_INLINE slot_plan plan_spread(std::span<const double> loads, const spread_shape& shape) {
  detail::require_loads("spread", loads);
  detail::require_shape(loads.size(), shape);
  const std::vector<std::uint32_t> scaled = detail::scaled_loads(loads);
  const std::size_t slots = shape.ranks * shape.slots_per_rank;
  const auto counts = detail::spread_counts(scaled, slots, shape.ranks);
  std::vector<std::uint32_t> order(loads.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::sort(order, {}, [&](std::uint32_t e) {
    return std::pair{-std::int64_t{scaled[e] / counts[e]}, e};
  });
  detail::rank_filler filler{shape, loads.size()};
  for (const std::uint32_t e : order) filler.place(e, counts[e], scaled[e] / counts[e]);

  detail::slot_search search{scaled, std::move(filler.slots()),
                             detail::equal_begins(slots, shape.ranks)};
  // A thousandth is less than what loads of one step differ by from those of the next.
  for (std::size_t i = 0; i < slots && search.balancedness() < 0.999; ++i)
    if (!search.take_step(slots)) break;
  return {search.physical_to_logical(), loads.size()};
}

}  // namespace peerbus::moe
