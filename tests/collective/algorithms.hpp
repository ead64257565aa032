// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/all_gather.hpp>
#include <peerbus/collective/all_reduce.hpp>
#include <peerbus/collective/all_reduce_add.hpp>
#include <peerbus/collective/detail/way_trials.hpp>
#include <peerbus/collective/reduce_scatter.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/shots_choice.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>

#include "collective/suite.hpp"
#include "collective/values.hpp"
#include "support/ranks.hpp"

/// The operations of `suite.hpp` by each algorithm, of which some reduce in another order.
namespace collective_suite {

/// Reductions of floating point whose result depends on no order, as all partial results are exact.
template <class T>
void check_exact(team& on, std::size_t count) {
  const auto part = [](std::size_t rank, std::size_t i) { return (7 * rank + i) % 5; };
  const std::size_t me = on.rank().index();
  std::vector<T> data(count);
  std::vector<T> expected(count);
  for (std::size_t i = 0; i < count; ++i) {
    data[i] = static_cast<T>(static_cast<float>(part(me, i)));
    std::size_t all = 0;
    for (std::size_t r = 0; r < on.size(); ++r) all += part(r, i);
    expected[i] = static_cast<T>(static_cast<float>(all));
  }
  std::vector<T> rows;
  for (std::size_t row = 0; row < on.size(); ++row)
    rows.insert(rows.end(), data.begin(), data.end());
  peerbus::collective::all_reduce(on, data, peerbus::collective::sum{});
  expect_same<T>(data, expected, "all_reduce of small integers");
  peerbus::collective::reduce_scatter(on, rows, data, peerbus::collective::sum{});
  expect_same<T>(data, expected, "reduce_scatter of small integers");
}

/// Sums that depend on the order have equal bits on all ranks, and again in the next call.
template <class T>
void check_same_bits(team& on, std::size_t count, std::uint64_t salt) {
  namespace coll = peerbus::collective;
  const std::vector<T> own = values<T>(on.rank().index(), count, salt);
  std::vector<T> out(count);
  std::vector<T> again = own;
  coll::all_reduce(on, own, out, coll::sum{});
  coll::all_reduce(on, again, coll::sum{});
  expect_same<T>(again, out, "all_reduce once more");
  std::vector<T> all(on.size() * count);
  coll::all_gather(on, out, all);
  for (std::size_t r = 0; r < on.size(); ++r)
    expect_same<T>(std::span{all}.subspan(r * count, count), out, "all_reduce of another rank");
}

/// What `two_levels` must give for element `index`, if rank r is in group r modulo `groups`.
template <class T>
T reduced_by_groups(std::size_t ranks, std::size_t groups, std::size_t index, std::uint64_t salt) {
  using wide = std::conditional_t<std::is_same_v<T, bf16>, float, T>;
  wide sum{};
  for (std::size_t g = 0; g < groups; ++g) {
    wide part{};
    for (std::size_t r = g; r < ranks; r += groups) {
      const auto element = static_cast<wide>(value<T>(r, index, salt));
      part = r == g ? element : part + element;
    }
    part = static_cast<wide>(static_cast<T>(part));
    sum = g == 0 ? part : sum + part;
  }
  return static_cast<T>(sum);
}

template <class T>
void check_sum_by_groups(team& on, std::size_t count, std::uint64_t salt) {
  const std::size_t groups = on.shape().groups();
  std::vector<T> data = values<T>(on.rank().index(), count, salt);
  std::vector<T> expected(count);
  for (std::size_t i = 0; i < count; ++i)
    expected[i] = reduced_by_groups<T>(on.size(), groups, i, salt);
  peerbus::collective::all_reduce(on, data, peerbus::collective::sum{});
  expect_same<T>(data, expected, "all_reduce by two_levels");

  const std::size_t me = on.rank().index();
  const std::vector<T> rows = values<T>(me, on.size() * count, salt);
  for (std::size_t i = 0; i < count; ++i)
    expected[i] = reduced_by_groups<T>(on.size(), groups, me * count + i, salt);
  peerbus::collective::reduce_scatter(on, rows, data, peerbus::collective::sum{});
  expect_same<T>(data, expected, "reduce_scatter by two_levels");
}

/// One call of an `all_reduce` whose algorithm is found by trial, in one of several forms. Call 10
/// is refused on all ranks first.
inline void check_call_in_trial(team& on, std::size_t count, std::uint64_t call) {
  namespace coll = peerbus::collective;
  const std::size_t n = on.size();
  const std::size_t me = on.rank().index();
  const std::vector<float> own = values<float>(me, count, call);
  std::vector<float> out(count);
  std::vector<float> expected = all_reduced<float>(n, count, call, coll::sum{});
  if (call == 10) {
    std::vector<float> longer(count + (me == 0 ? 1 : 0));
    test::expect_error(me == 0 ? peerbus::errc::invalid_argument : peerbus::errc::refused, {},
                       [&] { coll::all_reduce(on, own, longer, coll::sum{}); });
  }
  if (call % 4 == 0) {
    const std::vector<float> residual = values<float>(n, count, call);
    for (std::size_t i = 0; i < count; ++i) expected[i] += residual[i];
    coll::all_reduce_add(on, own, residual, out);
  } else if (call % 4 == 1) {
    out = own;
    coll::all_reduce(on, out, coll::sum{});
  } else if (call % 11 == 6 && me == call % n) {  // Is not timed; of each way at least 6 calls are.
    coll::start_all_reduce(on, own, out, coll::sum{}).finish();
  } else {
    coll::all_reduce(on, own, out, coll::sum{});
  }
  expect_same<float>(out, expected, "all_reduce in a trial");
}

/// Calls of `all_reduce` whose algorithm is found by trial: no bit changes, and all ranks find the
/// same.
inline void check_trials(team& on) {
  namespace coll = peerbus::collective;
  const std::size_t n = on.size();
  const std::array<std::size_t, 2> counts{300, 5000};
  // Calls of two classes alternate.
  for (std::uint64_t call = 1; call <= coll::detail::way_trials::first_decision; ++call)
    for (const std::size_t count : counts) {
      test::expect(!on.shots_for(count * sizeof(float)).is_measured, "the costs at first");
      check_call_in_trial(on, count, call);
    }
  for (const std::size_t count : counts) {
    const std::size_t bytes = count * sizeof(float);
    const coll::shots_choice choice = on.shots_for(bytes);
    test::expect(choice.is_measured && choice.one_shot_us > 0 && choice.two_shots_us > 0,
                 "measured");
    test::expect(choice.by == on.algorithm_of(coll::choice_of::all_reduce, bytes), "one answer");
    const std::array<double, 3> told{choice.one_shot_us, choice.two_shots_us,
                                     choice.by == coll::algorithm::two_shots ? 1.0 : 0.0};
    std::vector<double> all(3 * n);
    coll::all_gather(on, told, all);
    for (std::size_t i = 0; i < all.size(); ++i)
      test::expect_equal(all[i], told[i % 3], "what all ranks found");
    check_call_in_trial(on, count, 3);
  }
  test::expect(!on.shots_for(2500).is_measured, "a size that was not called");
}

/// Calls of `all_reduce` whose algorithm the options fix, by a limit or by costs.
inline void check_no_trials(team& on) {
  namespace coll = peerbus::collective;
  std::vector<float> data(5000);
  for (std::uint64_t call = 1; call <= coll::detail::way_trials::first_decision; ++call)
    coll::all_reduce(on, data, coll::sum{});
  const coll::shots_choice choice = on.shots_for(20000);
  test::expect(!choice.is_measured, "not measured");
  test::expect(choice.by == coll::algorithm::two_shots, "what the options say");
}

/// All operations by the algorithm that the options name.
inline void check_algorithm(team& on) {
  namespace coll = peerbus::collective;
  const coll::algorithm by = on.options().algorithm;
  std::uint64_t salt = 100;
  for (const std::size_t count : {0U, 1U, 3U, 17U, 64U, 65U, 257U}) {
    salt += 2;
    if (coll::keeps_rank_order(by)) {
      check_types(on, count, salt);
      continue;
    }
    check_copies<float>(on, count, salt);
    check_copies<std::uint8_t>(on, count, salt);
    check_reductions<std::int32_t>(on, count, salt, coll::maximum{});
    check_reductions<std::uint8_t>(on, count, salt, coll::sum{});
    check_custom(on, count);
    check_exact<float>(on, count);
    check_exact<bf16>(on, count);
    check_same_bits<float>(on, count, salt);
    if (on.algorithm_of(coll::choice_of::all_reduce, 1) != coll::algorithm::two_levels) continue;
    check_sum_by_groups<float>(on, count, salt);
    check_sum_by_groups<bf16>(on, count, salt);
  }
}

/// Runs `check_algorithm` for each algorithm on groups of several sizes. `possible` are those that
/// the largest groups must be able to use.
template <class Group>
void on_teams_by(std::initializer_list<peerbus::collective::algorithm> possible,
                 std::initializer_list<std::size_t> sizes) {
  namespace coll = peerbus::collective;
  for (const coll::algorithm by : possible)
    for (const std::size_t ranks : test::sizes_for<Group>(sizes)) {
      CAPTURE(name_of(by));
      const auto body = [by](team& on) {
        const auto expect_chosen = [&](coll::choice_of operation) {
          test::expect_equal(static_cast<int>(on.algorithm_of(operation, 300)),
                             static_cast<int>(by), "the algorithm");
        };
        if (on.size() >= 4 && on.size() % 2 == 0) {
          expect_chosen(coll::choice_of::all_reduce);
          if (!coll::keeps_rank_order(by)) expect_chosen(coll::choice_of::reduce_scatter);
          if (by == coll::algorithm::two_levels) expect_chosen(coll::choice_of::broadcast);
        }
        check_algorithm(on);
      };
      on_team<Group>(ranks, body, {.scratch_bytes = 10240, .window_bytes = 0, .algorithm = by});
    }
}

}  // namespace collective_suite
