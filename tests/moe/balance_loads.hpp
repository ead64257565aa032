// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/moe/balance/slot_plan.hpp>

#include "support/oracle.hpp"

/// Loads for planners, and the rules that their plans keep.
namespace balance_loads {

/// Returns tokens per expert that fall off as (rank of popularity)^-exponent, in a random order.
inline std::vector<double> zipf(std::size_t experts, double exponent, std::uint64_t seed,
                                double hottest = 1e6) {
  std::vector<double> loads(experts);
  for (std::size_t i = 0; i < experts; ++i)
    loads[i] = std::floor(hottest * std::pow(static_cast<double>(i + 1), -exponent));
  oracle::random numbers{seed};
  for (std::size_t i = experts; i > 1; --i) std::swap(loads[i - 1], loads[numbers.below(i)]);
  return loads;
}

/// Returns the loads some time later: each is between half and twice what it was.
inline std::vector<double> drifted(std::vector<double> loads, std::uint64_t seed) {
  oracle::random numbers{seed};
  for (double& load : loads) load = std::floor(load * std::exp2(2 * numbers.unit() - 1));
  return loads;
}

/// Returns the load of each rank, computed plainly: each slot has the load of its expert divided by
/// the number of slots that the expert has.
inline std::vector<double> loads_of_ranks(std::span<const double> loads,
                                          std::span<const std::uint32_t> map, std::size_t ranks) {
  std::vector<double> sums(ranks);
  for (std::size_t s = 0; s < map.size(); ++s) {
    double slots = 0;
    for (const std::uint32_t e : map) slots += e == map[s] ? 1 : 0;
    sums[s * ranks / map.size()] += loads[map[s]] / slots;
  }
  return sums;
}

/// Returns the mean of `loads_of_ranks` divided by the largest.
inline double balance(std::span<const double> loads, std::span<const std::uint32_t> map,
                      std::size_t ranks) {
  double sum = 0;
  double most = 0;
  for (const double load : loads_of_ranks(loads, map, ranks)) {
    sum += load;
    most = std::max(most, load);
  }
  return most == 0 ? 1 : sum / static_cast<double>(ranks) / most;
}

/// Returns how many slots of `map` have an expert that an earlier slot of the same rank has.
inline std::size_t duplicates(std::span<const std::uint32_t> map, std::size_t ranks) {
  std::set<std::pair<std::size_t, std::uint32_t>> held;
  for (std::size_t s = 0; s < map.size(); ++s) held.emplace(s * ranks / map.size(), map[s]);
  return map.size() - held.size();
}

/// Returns how many experts are on ranks that did not have them.
inline std::size_t arrivals(std::span<const std::uint32_t> old_map,
                            std::span<const std::uint32_t> map, std::size_t ranks) {
  std::set<std::pair<std::size_t, std::uint32_t>> held;
  for (std::size_t s = 0; s < map.size(); ++s) held.emplace(s * ranks / map.size(), old_map[s]);
  std::size_t count = 0;
  for (std::size_t s = 0; s < map.size(); ++s)
    count += held.contains({s * ranks / map.size(), map[s]}) ? 0 : 1;
  return count;
}

/// Checks the rules of any plan: each slot has one expert, each expert a slot or more, and the
/// tables agree.
inline void check_tables(const peerbus::moe::slot_plan& plan, std::size_t experts,
                         std::size_t slots) {
  REQUIRE(plan.experts() == experts);
  REQUIRE(plan.physical_to_logical().size() == slots);
  std::set<std::uint32_t> seen;
  std::size_t most = 0;
  for (std::uint32_t e = 0; e < experts; ++e) {
    REQUIRE(plan.replica_count(e) >= 1);
    REQUIRE(plan.slots_of(e).size() == plan.replica_count(e));
    most = std::max(most, plan.replica_count(e));
    for (const std::uint32_t slot : plan.slots_of(e)) {
      REQUIRE(slot < slots);
      REQUIRE(plan.physical_to_logical()[slot] == e);
      REQUIRE(seen.insert(slot).second);
    }
  }
  REQUIRE(seen.size() == slots);
  REQUIRE(plan.most_replicas() == most);
}

}  // namespace balance_loads
