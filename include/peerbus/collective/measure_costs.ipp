// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <span>
#include <vector>

#include <peerbus/collective/all_gather.hpp>
#include <peerbus/collective/all_reduce.hpp>
#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/cost_names.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/measure_costs.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/core/copy.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/this_machine.hpp>

namespace peerbus::collective::detail {

/// Times calls on all ranks of a team at once.
class cost_clock {
 public:
  cost_clock(team& team, const measure_options& options) : team_{team}, options_{options} {}

  /// Returns the microseconds of a call: the median over the turns, of the slowest rank.
  double time(peerbus::detail::function_ref<void()> call) {
    std::vector<double> times;
    for (std::size_t turn = 0; turn <= options_.turns; ++turn) {
      double ready = 0;
      all_reduce(team_, std::span{&ready, 1}, sum{}, call_options{options_.until});
      const auto start = deadline::now();
      for (std::size_t i = 0; i < options_.calls; ++i) call();
      const std::chrono::duration<double, std::micro> spent = deadline::now() - start;
      if (turn != 0) times.push_back(spent.count() / static_cast<double>(options_.calls));
    }
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    double slowest = *middle;
    all_reduce(team_, std::span{&slowest, 1}, maximum{}, call_options{options_.until});
    return slowest;
  }

 private:
  team& team_;
  const measure_options& options_;
};

PEERBUS_INLINE access_costs measure_access(const measured_teams& teams,
                                           const measure_options& options) {
  const team_shape& of = teams.one_shot.shape();
  const auto n = static_cast<double>(of.ranks());
  const bool has_steps = of.access != page_access::loads && of.ranks() > 2;
  const call_options limit{options.until};
  const std::size_t slice =
      whole_slice(algorithm::one_shot, choice_of::all_reduce, of, sizeof(float));
  const auto size = static_cast<double>(slice) / 1000;
  std::vector<std::byte> input(slice);
  std::vector<std::byte> output(of.ranks() * slice);
  cost_clock clock{teams.one_shot, options};
  const auto gather = [&](team& team, std::size_t bytes) {
    return clock.time([&] {
      all_gather(team, std::span{input}.first(bytes), std::span{output}.first(of.ranks() * bytes),
                 limit);
    });
  };

  access_costs costs;
  const double full = gather(teams.one_shot, 8);
  costs.round_us = full;
  if (has_steps) {
    const double step = gather(teams.doubling, 8) / static_cast<double>(doubling_steps(of.ranks()));
    costs.message_us = std::clamp((full - step) / (n - 2), 0.0, step);
    costs.round_us = step - costs.message_us;
  }

  const std::array<const std::byte*, 2> both{input.data(), output.data()};
  const reducer add = reducer::of<float>(sum{});
  costs.near_byte_ns = clock.time([&] {
    peerbus::detail::copy_bytes(output.data() + slice, input.data(), slice);
  }) / size;
  costs.reduce_byte_ns =
      clock.time([&] { add(output.data(), both, slice / sizeof(float)); }) / (2 * size);

  const auto near = static_cast<double>(of.group_ranks);
  const double of_mesh = (gather(teams.one_shot, slice) - full) / size;
  costs.byte_ns = near == n
                      ? costs.near_byte_ns
                      : std::max(0.0, (of_mesh - (near - 1) * costs.near_byte_ns) / (n - near));
  costs.ring_byte_ns = costs.byte_ns;
  if (!has_steps) return costs;
  const std::size_t parts = whole_slice(algorithm::ring, choice_of::all_reduce, of, sizeof(float));
  std::vector<float> data(parts / sizeof(float));
  access_costs known = costs;
  known.ring_byte_ns = 0;
  const double rest = clock.time([&] { all_reduce(teams.ring, std::span{data}, sum{}, limit); }) -
                      cost_us(algorithm::ring, choice_of::all_reduce, parts, of, known);
  costs.ring_byte_ns = std::max(0.0, rest / (2 * (n - 1) / n * static_cast<double>(parts) / 1000));
  return costs;
}

PEERBUS_INLINE void set_costs(cost_table& table, page_access access, const access_costs& costs) {
  cost_table measured;
  measured.set_machine(this_machine());
  // In steps of 0.0001, so that people can read the table.
  for (const named_cost& cost : named_costs)
    measured.set(cost_name{access, cost}.view(), std::round(costs.*cost.member * 1e4) / 1e4);
  table.merge(measured);
}

}  // namespace peerbus::collective::detail
