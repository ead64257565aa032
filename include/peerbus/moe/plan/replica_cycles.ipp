// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>

#include <peerbus/moe/plan/replica_cycles.hpp>

namespace peerbus::moe {

PEERBUS_INLINE replica_cycles::replica_cycles(const expert_map& map, const replica_choice& wanted,
                                              rank_id rank)
    : cycles_(map.experts()) {
  first_.reserve(cycles_.size());
  entries_.reserve(map.physical_experts());
  for (std::size_t e = 0; e < cycles_.size(); ++e) {
    cycle& made = cycles_[e];
    made.begin = static_cast<std::uint32_t>(entries_.size());
    add(map, wanted, e);
    made.size = static_cast<std::uint32_t>(entries_.size()) - made.begin;
    if (made.size > 1) made.inverse = ~std::uint64_t{0} / made.size + 1;
    take_turns_ = take_turns_ || made.size > 1;
    const auto begin = entries_.begin() + made.begin;
    std::rotate(begin, begin + static_cast<std::ptrdiff_t>((rank.index() + e) % made.size),
                entries_.end());
    first_.push_back(entries_[made.begin]);
  }
}

PEERBUS_INLINE replica_cycles replica_cycles::renamed(std::span<const std::uint32_t> names) const {
  replica_cycles made{*this};
  for (std::uint32_t& entry : made.entries_) entry = names[entry];
  for (std::uint32_t& entry : made.first_) entry = names[entry];
  return made;
}

PEERBUS_INLINE void replica_cycles::add(const expert_map& map, const replica_choice& wanted,
                                        std::size_t expert) {
  const auto all = map.replicas(expert);
  std::vector<std::uint32_t> left;
  left.reserve(all.size());
  for (const std::uint32_t p : all)
    if (!map.is_gone(rank_id{map.holder(p)})) left.push_back(p);
  if (left.empty()) left.assign(all.begin(), all.end());
  if (wanted.policy == replica_policy::weighted) return add_by_quotas(left, wanted.quotas);
  if (wanted.policy == replica_policy::fixed &&
      std::find(left.begin(), left.end(), wanted.chosen[expert]) != left.end()) {
    entries_.push_back(wanted.chosen[expert]);
    return;
  }
  if (wanted.policy != replica_policy::round_robin) {
    const auto distance = [&](std::uint32_t p) { return wanted.distances[map.holder(p)]; };
    std::uint32_t least = distance(left.front());
    for (const std::uint32_t p : left) least = std::min(least, distance(p));
    std::erase_if(left, [&](std::uint32_t p) { return distance(p) != least; });
    if (wanted.policy == replica_policy::fixed) left.resize(1);
  }
  entries_.insert(entries_.end(), left.begin(), left.end());
}

PEERBUS_INLINE void replica_cycles::add_by_quotas(std::span<const std::uint32_t> replicas,
                                                  std::span<const std::uint32_t> quotas) {
  struct share {
    std::uint32_t replica;
    std::uint64_t turns;      ///< the number of entries of the cycle that name the replica
    std::uint64_t remainder;  ///< the remainder of the division that gave `turns`
    std::int64_t credit;
  };
  std::vector<share> shares;
  const auto by_remainder = [](const share& a, const share& b) {
    return a.remainder < b.remainder;
  };
  const auto by_credit = [](const share& a, const share& b) { return a.credit < b.credit; };
  std::uint64_t unit = 0;
  std::uint64_t sum = 0;
  // If only replicas without quota are left, they share equally.
  const bool any = std::any_of(replicas.begin(), replicas.end(),
                               [&](std::uint32_t p) { return quotas[p] != 0; });
  for (const std::uint32_t p : replicas) {
    shares.push_back({p, any ? quotas[p] : 1U, 0, 0});
    unit = std::gcd(unit, shares.back().turns);
    sum += shares.back().turns;
  }
  unit = std::max<std::uint64_t>(unit, 1);  // Never 0: there is a replica, which has a turn.
  std::uint64_t turns = sum / unit;
  for (share& each : shares) {
    each.turns /= unit;
    if (turns <= most_turns) continue;
    each.remainder = each.turns * most_turns % turns;
    each.turns = each.turns * most_turns / turns;
  }
  if (turns > most_turns) {  // The largest remainders get the turns that are left.
    std::uint64_t given = 0;
    for (const share& each : shares) given += each.turns;
    for (; given < most_turns; ++given) {
      share& most = *std::max_element(shares.begin(), shares.end(), by_remainder);
      ++most.turns;
      most.remainder = 0;
    }
    turns = most_turns;
  }
  // Who has waited for the most turns is next, so that the turns of a replica are spread.
  for (std::uint64_t turn = 0; turn < turns; ++turn) {
    for (share& each : shares) each.credit += static_cast<std::int64_t>(each.turns);
    share& next = *std::max_element(shares.begin(), shares.end(), by_credit);
    next.credit -= static_cast<std::int64_t>(turns);
    entries_.push_back(next.replica);
  }
}

}  // namespace peerbus::moe
