// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <ranges>
#include <span>
#include <vector>

#include <peerbus/core/compiled.hpp>

namespace peerbus::moe {

namespace detail {

/// Checks that there are loads, and that all are finite and 0 or more.
/// Throws: `error` invalid_argument, whose text begins with `planner`, if not.
void require_loads(const char* planner, std::span<const double> loads);

/// Checks that `counters` is a multiple of `experts`, which is not 0.
/// Throws: `error` invalid_argument if not.
void require_samples(std::size_t counters, std::size_t experts);

/// The mean and the maximum of the loads of ranks.
struct load_spread {
  double mean = 0;
  double most = 0;

  load_spread() = default;
  template <class Number>
  explicit load_spread(std::span<const Number> loads) noexcept {
    if (loads.empty()) return;
    mean = static_cast<double>(std::accumulate(loads.begin(), loads.end(), Number{})) /
           static_cast<double>(loads.size());
    most = static_cast<double>(*std::max_element(loads.begin(), loads.end()));
  }

  [[nodiscard]] double balancedness() const noexcept { return most > 0 ? mean / most : 1; }
};

}  // namespace detail

/// Returns the sum of the loads of each expert over all samples: [experts]. `samples` has one row
/// of `experts` counters after another, such as numbers of tokens, of any arithmetic type.
///
/// Throws: `error` invalid_argument if `experts` is 0, or does not divide the number of counters.
///
/// Cost: allocates.
template <std::ranges::random_access_range Samples>
[[nodiscard]] std::vector<double> sum_of_loads(const Samples& samples, std::size_t experts) {
  const auto counters = static_cast<std::size_t>(std::ranges::size(samples));
  detail::require_samples(counters, experts);
  std::vector<double> sums(experts);
  for (std::size_t i = 0; i < counters; ++i) sums[i % experts] += static_cast<double>(samples[i]);
  return sums;
}

/// Returns the load of each rank: [ranks]. The replicas of an expert share its load equally.
/// `loads` is [experts], `physical_to_logical` is [slots] with the expert of each slot, and rank r
/// has the slots from r x slots / `rank_count` on.
///
/// Throws: `error` invalid_argument if a load is negative or not finite, if a slot names no expert,
/// if an expert with load has no slot, or if `rank_count` is 0 or does not divide the slots.
///
/// Cost: allocates.
[[nodiscard]] std::vector<double> rank_loads(std::span<const double> loads,
                                             std::span<const std::uint32_t> physical_to_logical,
                                             std::size_t rank_count);

///@{
/// Returns the balancedness of a layer: the mean of the loads of ranks over their maximum. 1 is
/// perfect, and also the result if there is no load. 1 / ranks means that one rank has all load. If
/// loads are counted rows, give only the ranks that hold experts.
[[nodiscard]] inline double balancedness(std::span<const double> loads_of_ranks) noexcept {
  return detail::load_spread{loads_of_ranks}.balancedness();
}
[[nodiscard]] inline double balancedness(std::span<const std::uint64_t> rows_of_ranks) noexcept {
  return detail::load_spread{rows_of_ranks}.balancedness();
}
///@}

/// Returns the mean of the balancedness of several layers, as SGLang prints it. `rows` are
/// [layers, `rank_count`]. 1 if there are no layers.
[[nodiscard]] double mean_balancedness(std::span<const std::uint64_t> rows,
                                       std::size_t rank_count) noexcept;

/// Returns the sum of the means of several layers over the sum of their maxima, as vLLM prints it.
/// `rows` are [layers, `rank_count`]. 1 if there are no rows.
[[nodiscard]] double total_balancedness(std::span<const std::uint64_t> rows,
                                        std::size_t rank_count) noexcept;

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/balance/load.ipp>  // IWYU pragma: keep
#endif
