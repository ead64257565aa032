// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/collective.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/lane.hpp>
#include <peerbus/core/rank.hpp>

#include "collective/suite.hpp"
#include "support/on_lanes.hpp"
#include "support/ranks.hpp"

/// Several threads of each rank that carry one operation together.
namespace collective_suite {

using test::on_lanes;

/// Each operation by one lane and by several, which must give the same bits. The ranks have
/// different numbers of lanes.
template <class T>
void check_lanes_of(team& on, std::size_t lanes, std::size_t count, std::uint64_t salt) {
  namespace coll = peerbus::collective;
  const std::size_t n = on.size();
  const std::size_t me = on.rank().index();
  const rank_id root{salt % n};
  const std::vector<T> mine = values<T>(me, count, salt);
  const std::vector<T> rows = values<T>(me, n * count, salt + 1);
  const std::vector<T> residual = values<T>(n, count, salt);
  const std::vector<std::uint64_t> counts(n, count);
  constexpr coll::sum sum{};
  const std::size_t own_lanes = me == 1 ? 1 : lanes;

  const auto check = [&](const std::vector<T>& before, auto&& call, std::string_view what) {
    std::vector<T> expected = before;
    call(expected, coll::call_options{});
    std::vector<T> out = before;
    on_lanes(own_lanes, [&](peerbus::lane as) { call(out, coll::call_options{.as = as}); });
    expect_same<T>(out, expected, what);
  };
  const std::vector<T> one_row(count);
  const std::vector<T> all_rows(n * count);
  check(
      all_rows, [&](auto& out, auto with) { coll::all_gather(on, mine, out, with); }, "all_gather");
  check(
      all_rows, [&](auto& out, auto with) { coll::all_to_all(on, rows, out, with); }, "all_to_all");
  check(
      one_row, [&](auto& out, auto with) { coll::all_reduce(on, mine, out, sum, with); },
      "all_reduce");
  check(
      mine, [&](auto& out, auto with) { coll::all_reduce(on, out, sum, with); },
      "all_reduce in place");
  check(
      one_row, [&](auto& out, auto with) { coll::reduce(on, mine, out, sum, root, with); },
      "reduce");
  check(
      one_row, [&](auto& out, auto with) { coll::reduce_scatter(on, rows, out, sum, with); },
      "reduce_scatter");
  check(mine, [&](auto& out, auto with) { coll::broadcast(on, out, root, with); }, "broadcast");
  check(
      on.rank() == root ? all_rows : std::vector<T>{},
      [&](auto& out, auto with) { coll::gather(on, mine, out, root, with); }, "gather");
  check(
      one_row, [&](auto& out, auto with) { coll::scatter(on, rows, out, root, with); }, "scatter");
  check(
      one_row, [&](auto& out, auto with) { coll::all_reduce_add(on, mine, residual, out, with); },
      "all_reduce_add");
  check(
      residual, [&](auto& out, auto with) { coll::all_reduce_add(on, mine, out, out, with); },
      "all_reduce_add to the residual");
  check(
      all_rows, [&](auto& out, auto with) { coll::all_gather_v(on, mine, out, {counts}, with); },
      "all_gather_v");
  check(
      all_rows,
      [&](auto& out, auto with) { coll::all_to_all_v(on, rows, {counts}, out, {counts}, with); },
      "all_to_all_v");
  check(
      one_row,
      [&](auto& out, auto with) { coll::reduce_scatter_v(on, rows, {counts}, out, sum, with); },
      "reduce_scatter_v");
}

/// First halves by one lane, of which several do the second halves.
inline void check_lanes_of_second_halves(team& on, std::size_t lanes, std::size_t count,
                                         std::uint64_t salt) {
  namespace coll = peerbus::collective;
  const std::size_t n = on.size();
  const std::size_t me = on.rank().index();
  const std::vector<float> mine = values<float>(me, count, salt);
  const std::vector<float> rows = values<float>(me, n * count, salt + 1);
  const std::vector<std::uint64_t> counts(n, count);
  const auto until = peerbus::deadline::after(std::chrono::seconds{100});
  const auto check = [&](std::size_t size, auto&& whole, auto&& start, std::string_view what) {
    std::vector<float> expected(size);
    whole(expected);
    std::vector<float> out(size);
    coll::pending half = start(out);
    on_lanes(lanes, [&](peerbus::lane as) {
      half.finish(as.count == 2 ? coll::call_options{.as = as}
                                : coll::call_options{.until = until, .as = as});
      test::expect(!half.has_operation(), what, " is finished");
      expect_same<float>(out, expected, what);
    });
  };
  constexpr coll::sum sum{};
  check(
      count, [&](auto& out) { coll::all_reduce(on, mine, out, sum); },
      [&](auto& out) { return coll::start_all_reduce(on, mine, out, sum); },
      "all_reduce finished by lanes");
  check(
      n * count, [&](auto& out) { coll::all_gather(on, mine, out); },
      [&](auto& out) { return coll::start_all_gather(on, mine, out); },
      "all_gather finished by lanes");
  check(
      count, [&](auto& out) { coll::reduce_scatter(on, rows, out, sum); },
      [&](auto& out) { return coll::start_reduce_scatter(on, rows, out, sum); },
      "reduce_scatter finished by lanes");
  check(
      n * count, [&](auto& out) { coll::all_gather_v(on, mine, out, {counts}); },
      [&](auto& out) { return coll::start_all_gather_v(on, mine, out, {counts}); },
      "all_gather_v finished by lanes");
}

/// A sum that counts the elements which other threads than `own` have added.
struct counting_sum {
  std::thread::id own;
  std::atomic<std::size_t>* by_others;
  float operator()(float a, float b) const noexcept {
    if (std::this_thread::get_id() != own) by_others->fetch_add(1);
    return a + b;
  }
};

/// Lanes other than lane 0 reduce their shares, by the algorithm of the team.
inline void check_shared_reductions(team& on) {
  namespace coll = peerbus::collective;
  constexpr std::size_t count = 60'000;
  const std::vector<float> rows(on.size() * count, 1.0F);
  const std::span mine = std::span{rows}.first(count);
  std::vector<float> out(count);
  std::atomic<std::size_t> by_others = 0;
  const counting_sum op{std::this_thread::get_id(), &by_others};
  // The half of each reduction, at least of those between two groups.
  const auto expect_shared = [&](std::string_view what) {
    test::expect(by_others.exchange(0) >= count / on.size() / 2, what, " by other lanes");
    expect_same<float>(out, std::vector<float>(count, static_cast<float>(on.size())), what);
  };
  on_lanes(2, [&](peerbus::lane as) { coll::all_reduce(on, mine, out, op, {.as = as}); });
  expect_shared("all_reduce");
  on_lanes(2, [&](peerbus::lane as) { coll::reduce_scatter(on, rows, out, op, {.as = as}); });
  expect_shared("reduce_scatter");
  out.assign(count, 0.0F);
  coll::pending half = coll::start_all_reduce(on, mine, out, op);
  on_lanes(2, [&](peerbus::lane as) { half.finish({.as = as}); });
  expect_shared("all_reduce in halves");
}

inline void check_lanes(team& on, std::size_t lanes) {
  namespace coll = peerbus::collective;
  // Lanes divide what has 16 KiB or more. The last shares are shorter.
  for (const std::size_t count : {0U, 3U, 9001U, 30'011U})
    check_lanes_of<float>(on, lanes, count, 700 + count);
  check_lanes_of<bf16>(on, lanes, 10'001, 710);
  check_lanes_of_second_halves(on, lanes, 20'003, 715);

  constexpr std::size_t hidden = 48;
  const std::vector<bf16> tokens = values<bf16>(on.rank().index(), 23 * hidden, 720);
  std::vector<bf16> expected(on.size() * tokens.size());
  std::vector<bf16> out(expected.size());
  const peerbus::codec::int8_per_token codec;
  coll::all_gather_coded(on, codec, hidden, tokens, expected);
  on_lanes(lanes, [&](peerbus::lane as) {
    coll::all_gather_coded(on, codec, hidden, tokens, out, {.as = as});
  });
  expect_same<bf16>(out, expected, "all_gather_coded");
}

/// Operations on operands in a window, by several lanes.
template <class Group>
void check_lanes_in_windows(std::size_t ranks, std::size_t lanes) {
  namespace coll = peerbus::collective;
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [lanes](auto& comm) {
    constexpr std::size_t count = 40'001;
    constexpr std::uint64_t salt = 730;
    team on{comm};
    auto memory = comm.make_window(count * sizeof(float), 0);
    const std::span<float> part = memory.template local<float>();
    const auto in = coll::in_window(memory, part);
    const std::vector<float> mine = values<float>(on.rank().index(), count, salt);
    std::ranges::copy(mine, part.begin());
    std::vector<float> all(on.size() * count);
    on_lanes(lanes, [&](peerbus::lane as) { coll::all_gather(on, in, all, {.as = as}); });
    expect_same<float>(all, gathered<float>(on.size(), count, salt), "all_gather of a window");
    on_lanes(lanes, [&](peerbus::lane as) { coll::all_reduce(on, in, coll::sum{}, {.as = as}); });
    const std::vector<float> total = all_reduced<float>(on.size(), count, salt, coll::sum{});
    expect_same<float>(part, total, "all_reduce in a window");
  });
  CHECK(worst_status == 0);
}

/// All lanes throw what an operation throws, and the team remains usable.
inline void check_lanes_that_throw(team& on) {
  namespace coll = peerbus::collective;
  const std::vector<float> mine(5, 1.0F);
  std::vector<float> out(3);
  std::vector<std::string> thrown(3);
  on_lanes(3, [&](peerbus::lane as) {
    try {
      coll::all_reduce(on, mine, out, coll::sum{}, {.as = as});
    } catch (const peerbus::error& problem) {
      thrown[as.index] = problem.text();
    }
  });
  for (const std::string& text : thrown)
    test::expect(text.find("output of 3 elements, expected 5") != std::string::npos, text);
  try {
    const coll::pending half = coll::start_broadcast(on, out, rank_id{0}, {.as = {1, 2}});
    test::fail("a first half by two lanes");
  } catch (const peerbus::error& problem) {
    test::expect(problem.text().find("lane 1 of 2, expected one lane") != std::string::npos,
                 problem.text());
  }
  check_lanes(on, 3);
}

/// A batch of messages takes one lane.
inline void check_lanes_of_messages(peerbus::collective::channels& on) {
  try {
    peerbus::collective::batch_send_recv(on, std::span<const peerbus::collective::transfer>{},
                                         {.as = {0, 2}});
    test::fail("messages by two lanes");
  } catch (const peerbus::error& problem) {
    test::expect(problem.text().find("lane 0 of 2, expected one lane") != std::string::npos,
                 problem.text());
  }
}

/// A lane that does not come is named at the deadline.
inline void check_missing_lane(team& on, peerbus::lane as, std::size_t missing,
                               bool is_second_half) {
  namespace coll = peerbus::collective;
  std::vector<float> data(5);
  const auto until = peerbus::deadline::after(std::chrono::milliseconds{30});
  try {
    if (is_second_half) {
      coll::pending half = coll::start_all_reduce(on, data, coll::sum{});
      half.finish({.until = until, .as = as});
    } else {
      coll::all_reduce(on, data, coll::sum{}, {.until = until, .as = as});
    }
    test::fail("all_reduce without a lane");
  } catch (const peerbus::error& problem) {
    test::expect(problem.code() == peerbus::errc::timed_out, problem.text());
    const std::string expected =
        "all_reduce: lane " + std::to_string(missing) + " did not come in time";
    test::expect(problem.text().find(expected) != std::string::npos, problem.text());
  }
  try {
    coll::all_reduce(on, data, coll::sum{});
    test::fail("all_reduce of a poisoned communicator");
  } catch (const peerbus::error& problem) {
    test::expect(problem.code() == peerbus::errc::poisoned, problem.text());
  }
}

/// Lanes that make different calls are named, and nothing is carried out.
inline void check_lanes_of_different_calls(team& on) {
  namespace coll = peerbus::collective;
  std::vector<float> data(5);
  on_lanes(2, [&](peerbus::lane as) {
    try {
      if (as.index == 0)
        coll::all_reduce(on, data, coll::sum{}, {.as = as});
      else
        coll::broadcast(on, data, peerbus::rank_id{0}, {.as = as});
      test::fail("lanes of different calls");
    } catch (const peerbus::error& problem) {
      test::expect(problem.code() == peerbus::errc::invalid_argument, problem.text());
      test::expect(problem.text().find("lane 1 calls broadcast, but lane 0 calls all_reduce") !=
                       std::string::npos,
                   problem.text());
    }
  });
}

}  // namespace collective_suite
