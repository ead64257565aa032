// SPDX-License-Identifier: MIT
#pragma once

#include <limits>

#include <peerbus/core/error.hpp>
#include <peerbus/moe/balance/load.hpp>

namespace peerbus::moe {

namespace detail {

PEERBUS_INLINE void require_loads(const char* planner, std::span<const double> loads) {
  if (loads.empty())
    throw error{errc::invalid_argument, concat(planner, ": loads is empty, expected experts")};
  for (std::size_t e = 0; e < loads.size(); ++e)
    if (!(loads[e] >= 0 && loads[e] <= std::numeric_limits<double>::max()))
      throw error{errc::invalid_argument, concat(planner, ": the load of expert ", e, " is ",
                                                 loads[e], ", expected 0 or more, and finite")};
}

PEERBUS_INLINE void require_samples(std::size_t counters, std::size_t experts) {
  if (experts == 0 || counters % experts != 0)
    throw error{errc::invalid_argument,
                concat("sum_of_loads: ", counters, " counters of ", experts,
                       " experts, expected 1 expert or more, and a multiple of the experts")};
}

}  // namespace detail

PEERBUS_INLINE std::vector<double> rank_loads(std::span<const double> loads,
                                              std::span<const std::uint32_t> physical_to_logical,
                                              std::size_t rank_count) {
  detail::require_loads("rank_loads", loads);
  const std::size_t slots = physical_to_logical.size();
  if (rank_count == 0 || slots % rank_count != 0)
    throw error{errc::invalid_argument,
                concat("rank_loads: ", slots, " slots on ", rank_count,
                       " ranks, expected 1 rank or more, and a multiple of the ranks")};
  std::vector<std::uint32_t> replicas(loads.size());
  for (std::size_t s = 0; s < slots; ++s) {
    if (physical_to_logical[s] >= loads.size())
      throw error{errc::invalid_argument,
                  concat("rank_loads: physical_to_logical[", s, "] is ", physical_to_logical[s],
                         ", expected 0 to ", loads.size() - 1)};
    ++replicas[physical_to_logical[s]];
  }
  for (std::size_t e = 0; e < loads.size(); ++e)
    if (replicas[e] == 0 && loads[e] > 0)
      throw error{errc::invalid_argument, concat("rank_loads: expert ", e, " has the load ",
                                                 loads[e], " and no slot, expected one or more")};
  std::vector<double> sums(rank_count);
  for (std::size_t s = 0; s < slots; ++s) {
    const std::uint32_t expert = physical_to_logical[s];
    sums[s / (slots / rank_count)] += loads[expert] / replicas[expert];
  }
  return sums;
}

PEERBUS_INLINE double mean_balancedness(std::span<const std::uint64_t> rows,
                                        std::size_t rank_count) noexcept {
  const std::size_t layers = rank_count == 0 ? 0 : rows.size() / rank_count;
  double sum = 0;
  for (std::size_t l = 0; l < layers; ++l)
    sum += balancedness(rows.subspan(l * rank_count, rank_count));
  return layers == 0 ? 1 : sum / static_cast<double>(layers);
}

PEERBUS_INLINE double total_balancedness(std::span<const std::uint64_t> rows,
                                         std::size_t rank_count) noexcept {
  detail::load_spread all;
  for (std::size_t first = 0; rank_count != 0 && first + rank_count <= rows.size();
       first += rank_count) {
    const detail::load_spread layer{rows.subspan(first, rank_count)};
    all.mean += layer.mean;
    all.most += layer.most;
  }
  return all.balancedness();
}

}  // namespace peerbus::moe
