// SPDX-License-Identifier: MIT
#pragma once

#include <limits>
#include <string_view>
#include <utility>

#include <peerbus/collective/detail/algorithm_choice.hpp>
#include <peerbus/collective/detail/cost_names.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE bool has_costs_of(const cost_table& table, page_access access) noexcept {
  for (const named_cost& cost : named_costs)
    if (table.find(cost_name{access, cost}.view())) return true;
  return false;
}

PEERBUS_INLINE access_costs costs_from(const cost_table& table, page_access access) noexcept {
  access_costs costs = access_costs::assumed(access);
  for (const named_cost& cost : named_costs)
    costs.*cost.member = table.find(cost_name{access, cost}.view()).value_or(costs.*cost.member);
  return costs;
}

PEERBUS_INLINE algorithm_choice::algorithm_choice(const team_shape& shape,
                                                  const access_costs& costs,
                                                  const limits& given) noexcept
    : may_reorder_{given.may_reorder || !keeps_rank_order(given.forced)},
      rank_order_{choose(choice_of::all_reduce, shape, costs, given, false)},
      any_order_{choose(choice_of::all_reduce, shape, costs, given, true)},
      gathering_{choose(choice_of::all_gather, shape, costs, given, true)},
      scattering_{choose(choice_of::reduce_scatter, shape, costs, given, true)},
      broadcasting_{choose(choice_of::broadcast, shape, costs, given, true)},
      close_{close_sizes(shape, costs, given)} {}

PEERBUS_INLINE std::uint64_t algorithm_choice::close_sizes(const team_shape& shape,
                                                           const access_costs& costs,
                                                           const limits& given) noexcept {
  // Where one costs more than this by the formulas, a trial would only cost time.
  constexpr double most_ratio = 4;
  if (!given.has_trials || !is_possible(algorithm::two_shots, choice_of::all_reduce, shape))
    return 0;
  std::uint64_t close = 0;
  for (std::size_t log2 = least_tried_log2; log2 <= most_tried_log2; ++log2) {
    const auto cost = [&](algorithm by) noexcept {
      return cost_us(by, choice_of::all_reduce, std::size_t{1} << log2, shape, costs);
    };
    // Not their ratio, as costs may be 0.
    const double one = cost(algorithm::one_shot);
    const double two = cost(algorithm::two_shots);
    if (one < most_ratio * two && two < most_ratio * one) close |= std::uint64_t{1} << log2;
  }
  return close;
}

PEERBUS_INLINE algorithm_choice::by_size algorithm_choice::choose(choice_of operation,
                                                                  const team_shape& shape,
                                                                  const access_costs& costs,
                                                                  const limits& given,
                                                                  bool may_reorder) noexcept {
  const bool is_forced = given.forced != algorithm::automatic &&
                         is_possible(given.forced, operation, shape) &&
                         (may_reorder || keeps_rank_order(given.forced));
  const bool is_divided = !is_forced && operation == choice_of::all_reduce && given.one_shot_bytes;
  by_size made{
      is_divided ? *given.one_shot_bytes : std::numeric_limits<std::size_t>::max(), {}, {}};
  for (std::size_t log2 = 0; log2 < made.small.size(); ++log2) {
    const std::size_t bytes = std::size_t{1} << log2;
    const auto best_of = [&](std::span<const algorithm> candidates) noexcept {
      return cheapest(candidates, operation, bytes, shape, costs, may_reorder);
    };
    const algorithm gathers = best_of(gathering_algorithms);
    const algorithm divides = best_of(dividing_algorithms);
    const bool is_small =
        given.has_trials && operation == choice_of::all_reduce && log2 < least_tried_log2;
    const bool can_divide = divides != algorithm::automatic && !is_small;
    const bool divides_cheaper = can_divide && cost_us(divides, operation, bytes, shape, costs) <
                                                   cost_us(gathers, operation, bytes, shape, costs);
    made.small[log2] = is_forced                        ? given.forced
                       : !is_divided && divides_cheaper ? divides
                                                        : gathers;
    made.large[log2] = can_divide ? divides : gathers;
  }
  return made;
}

}  // namespace peerbus::collective::detail
