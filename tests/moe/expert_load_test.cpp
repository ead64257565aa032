// SPDX-License-Identifier: MIT
// ctest: tsan
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/balance.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/expert_map.hpp>

#include "support/groups.hpp"
#include "support/oracle.hpp"
#include "support/placed_experts.hpp"
#include "support/ranks.hpp"
#include "support/repetitions.hpp"

namespace expert_load_test {

// The rows of experts over a window of steps.

namespace {

using peerbus::errc;
using peerbus::codec::int8_per_token;
using peerbus::moe::expert_load;
using peerbus::moe::expert_map;
using peerbus::moe::plan_incremental;
using peerbus::moe::replica_policy;
using peerbus::moe::vacant;
using placed_experts::case_of_replicas;
using sums = std::vector<std::uint64_t>;

/// The rows of each physical expert, counted slot by slot.
std::vector<std::uint32_t> rows_of(const case_of_replicas& given,
                                   const std::vector<oracle::input>& inputs) {
  std::vector<std::uint32_t> rows(given.logical.size());
  for (std::size_t r = 0; r < inputs.size(); ++r)
    for (std::size_t slot = 0; slot < inputs[r].experts.size(); ++slot)
      if (const std::int64_t e = inputs[r].experts[slot]; e != -1)
        ++rows[given.physical(r, slot / placed_experts::top_k, static_cast<std::size_t>(e))];
  return rows;
}

template <class Communicator, class Layout>
void check_counts(Communicator& comm, const Layout& layout, bool of_all) {
  const std::size_t me = comm.rank().index();
  const case_of_replicas given{comm.size(), 8, replica_policy::round_robin};
  peerbus::moe::exchange counted{comm, given.config_of(me), int8_per_token{}, layout};
  for (std::uint64_t round = 0; round < 3; ++round) {
    const auto inputs = placed_experts::inputs_of(given, round);
    const auto got = counted.dispatch(inputs[me].tokens, {inputs[me].experts, inputs[me].weights});
    std::vector<std::uint32_t> rows(given.logical.size(), 99);
    test::expect_equal(counted.count_rows(got.ticket(), rows), of_all, "whether all is known");
    auto wanted = rows_of(given, inputs);
    if (!of_all)
      for (std::size_t p = 0; p < wanted.size(); ++p)
        if (given.holder[p] != me) wanted[p] = 0;
    test::expect(rows == wanted, "rows of physical experts");
    rows.pop_back();
    test::expect_error(errc::invalid_argument, {"count_rows: rows has"},
                       [&] { counted.count_rows(got.ticket(), rows); });
    test::run_experts(got);
    std::vector<peerbus::bf16> out(inputs[me].tokens.size());
    counted.combine(got, out);
  }
}

/// Returns the mean of the loads of the living ranks that hold places, divided by the largest. The
/// living replicas of an expert share its load.
double balance_of(const case_of_replicas& given, const std::vector<double>& loads) {
  const auto is_living = [&](std::size_t p) { return !given.gone[given.holder[p]]; };
  std::vector<double> of_ranks(given.ranks);
  for (std::size_t p = 0; p < given.logical.size(); ++p) {
    if (given.logical[p] == vacant || !is_living(p)) continue;
    std::size_t replicas = 0;
    for (std::size_t q = 0; q < given.logical.size(); ++q)
      replicas += given.logical[q] == given.logical[p] && is_living(q) ? 1 : 0;
    of_ranks[given.holder[p]] += loads[given.logical[p]] / static_cast<double>(replicas);
  }
  double sum = 0;
  double most = 0;
  double holding = 0;
  for (std::size_t r = 0; r < given.ranks; ++r) {
    sum += of_ranks[r];
    most = std::max(most, of_ranks[r]);
    holding += given.experts_of_rank[r] != 0 && !given.gone[r] ? 1 : 0;
  }
  return most == 0 ? 1 : sum / holding / most;
}

/// Checks that `now` is a legal successor of the places of `given`, and returns how many experts
/// have come to places that did not have them.
std::size_t arrivals(const case_of_replicas& given, std::span<const std::uint32_t> now,
                     std::size_t fixed) {
  std::size_t come = 0;
  std::size_t first = 0;
  std::vector<bool> is_held(placed_experts::experts);
  for (std::size_t r = 0; r < given.ranks; ++r) {
    const std::size_t end = first + given.experts_of_rank[r];
    std::vector<std::uint32_t> before{given.logical.begin() + static_cast<std::ptrdiff_t>(first),
                                      given.logical.begin() + static_cast<std::ptrdiff_t>(end)};
    std::vector<std::uint32_t> after{now.begin() + static_cast<std::ptrdiff_t>(first),
                                     now.begin() + static_cast<std::ptrdiff_t>(end)};
    for (std::size_t i = 0; i < after.size(); ++i) {
      const std::uint32_t expert = after[i];
      const bool stays = std::ranges::find(after, before[i]) != after.end();
      if (given.gone[r] || i < fixed || (before[i] != vacant && stays))
        REQUIRE(expert == before[i]);
      if (expert == vacant) continue;
      REQUIRE(std::ranges::count(after, expert) == 1);
      if (!given.gone[r]) is_held[expert] = true;
      if (std::ranges::find(before, expert) == before.end()) ++come;
    }
    first = end;
  }
  for (std::size_t e = 0; e < is_held.size(); ++e) REQUIRE(is_held[e] == !given.is_lost(e));
  return come;
}

}  // namespace

TEST_CASE("plans for ranks of any size, with vacant places, and without the dead") {
  oracle::random numbers{17};
  std::size_t moved = 0;
  std::size_t filled = 0;
  std::size_t lost = 0;
  for (std::size_t i = 0; i < test::repetitions(1500); ++i) {
    CAPTURE(i);
    case_of_replicas given{2 + numbers.below(6), i, replica_policy::round_robin};
    expert_map map{given.config_of(0), given.ranks};
    if (numbers.below(2) == 0) {
      given.gone[numbers.below(given.ranks)] = true;
      map.lose(given.gone);
    }
    std::vector<double> loads(placed_experts::experts);
    for (double& load : loads) load = static_cast<double>(numbers.below(1000));
    const peerbus::moe::incremental_limits limits{.least_gain = 0.1 * numbers.unit(),
                                                  .most_moves = numbers.below(8),
                                                  .fixed_slots = numbers.below(3)};
    const auto found = plan_incremental(loads, map, limits);
    REQUIRE(found.old_map == given.logical);
    const auto table = found.plan.physical_to_logical();
    REQUIRE(table.size() == given.logical.size());
    REQUIRE(arrivals(given, table, limits.fixed_slots) == found.moves);
    REQUIRE(found.moves <= limits.most_moves);
    std::size_t places = 0;
    for (std::size_t e = 0; e < found.plan.experts(); ++e) {
      for (const std::uint32_t slot : found.plan.slots_of(e)) REQUIRE(table[slot] == e);
      places += found.plan.replica_count(e);
    }
    REQUIRE(places == table.size() - static_cast<std::size_t>(std::ranges::count(table, vacant)));
    for (std::size_t e = 0; e < loads.size(); ++e)
      if (given.is_lost(e)) {
        loads[e] = 0;
        ++lost;
      }
    REQUIRE(found.before == doctest::Approx(balance_of(given, loads)).epsilon(1e-4));
    for (std::size_t p = 0; p < table.size(); ++p)
      filled += given.logical[p] == vacant && table[p] != vacant ? 1 : 0;
    given.logical.assign(table.begin(), table.end());
    REQUIRE(found.after == doctest::Approx(balance_of(given, loads)).epsilon(1e-4));
    if (found.moves == 0) continue;
    REQUIRE(found.after - found.before >= limits.least_gain);
    ++moved;
  }
  CHECK(moved > test::repetitions(1500) / 10);
  CHECK(filled != 0);
  CHECK(lost != 0);
}

TEST_CASE("a vacant place takes half of the busiest expert") {
  const std::vector<std::uint32_t> table{0, 1, vacant};
  const std::vector<std::uint32_t> experts_of_rank{0, 1, 2};
  peerbus::moe::exchange_config config{.experts = 2};
  config.physical_to_logical = table;
  config.experts_of_rank = experts_of_rank;
  const expert_map map{config, 3};
  const auto found = plan_incremental(std::vector<double>{100, 0}, map);
  CHECK(std::ranges::equal(found.plan.physical_to_logical(), std::vector<std::uint32_t>{0, 1, 0}));
  CHECK(found.moves == 1);
  CHECK(found.before == 0.5);
  CHECK(found.after == 1);
  CHECK(std::ranges::equal(found.plan.slots_of(0), std::vector<std::uint32_t>{0, 2}));
}

TEST_CASE("a plan from rows that were counted with another map is refused") {
  case_of_replicas given{3, 4, replica_policy::round_robin};
  const auto map_of = [&] { return expert_map{given.config_of(0), given.ranks}; };
  const expert_map former = map_of();
  expert_load load{former, 4};
  load.add(std::vector<std::uint32_t>(given.logical.size(), 5));
  const auto rows = load.rows_of_experts();
  const auto from_rows = plan_incremental(load, former);
  CHECK(from_rows.plan ==
        plan_incremental(peerbus::moe::sum_of_loads(rows, rows.size()), former).plan);
  given.shuffle(9);
  const expert_map installed = map_of();
  test::expect_error(errc::invalid_argument, {"counted with another map: place ", " had expert "},
                     [&] { static_cast<void>(plan_incremental(load, installed)); });
  load.move_to(installed);
  static_cast<void>(plan_incremental(load, installed));
  expert_map shrunk = installed;
  shrunk.lose({false, true, false});
  test::expect_error(errc::invalid_argument, {"counted with another map: rank 1 is gone"},
                     [&] { static_cast<void>(plan_incremental(load, shrunk)); });
  const expert_map other{{.experts = 4}, 3};
  test::expect_error(errc::invalid_argument, {"a map of 4 experts"},
                     [&] { static_cast<void>(plan_incremental(load, other)); });
  test::expect_error(errc::invalid_argument, {"incremental: loads of 3 experts, expected 4"},
                     [&] { static_cast<void>(plan_incremental(std::vector<double>(3), other)); });
}

TEST_CASE("a dispatch says how many rows each expert got") {
  const int worst_status = test::direct_threads::run(4, [](auto& comm) {
    check_counts(comm, peerbus::moe::compact{.alignment = 8}, true);
    check_counts(comm, peerbus::moe::padded{}, true);
    check_counts(comm, peerbus::moe::expert_slots{}, false);
    check_counts(comm, peerbus::moe::rank_major{}, false);
    check_counts(comm, peerbus::moe::slots{}, false);
  });
  CHECK(worst_status == 0);
}

TEST_CASE("rows are summed over a window, and begin anew at places that have changed") {
  case_of_replicas given{5, 3, replica_policy::round_robin};
  const auto map_of = [&] { return expert_map{given.config_of(0), given.ranks}; };
  for (const std::size_t window : {1U, 2U, 5U}) {
    CAPTURE(window);
    expert_load load{map_of(), window};
    struct step {
      std::vector<std::uint32_t> rows;
      std::vector<std::uint32_t> logical;
      std::uint64_t moves;
    };
    std::deque<step> steps;
    std::uint64_t moves = 0;
    oracle::random numbers{window};
    for (std::uint64_t round = 0; round < 23; ++round) {
      if (round % 7 == 6) {
        given.shuffle(round);
        load.move_to(map_of());
        ++moves;
      }
      std::vector<std::uint32_t> rows(given.logical.size());
      for (auto& count : rows) count = static_cast<std::uint32_t>(numbers.below(1000));
      load.add(rows);
      steps.push_back({rows, given.logical, moves});
      if (steps.size() > window) steps.pop_front();
      sums of_experts(placed_experts::experts);
      sums of_places(rows.size());
      sums of_ranks(given.ranks);
      for (const step& each : steps)
        for (std::size_t p = 0; p < rows.size(); ++p) {
          if (each.logical[p] != peerbus::moe::vacant) of_experts[each.logical[p]] += each.rows[p];
          if (each.moves != moves) continue;
          of_places[p] += each.rows[p];
          of_ranks[given.holder[p]] += each.rows[p];
        }
      CHECK(load.steps() == steps.size());
      CHECK(std::ranges::equal(load.rows_of_experts(), of_experts));
      CHECK(std::ranges::equal(load.rows_of_physical_experts(), of_places));
      CHECK(load.rows_of_ranks() == of_ranks);
      // The last rank holds nothing, and is no part of the balance.
      CHECK(given.experts_of_rank.back() == 0);
      std::uint64_t most = 0;
      std::uint64_t all = 0;
      for (const std::uint64_t count : of_ranks) {
        most = std::max(most, count);
        all += count;
      }
      const double holding = static_cast<double>(
          given.ranks - static_cast<std::size_t>(std::ranges::count(given.experts_of_rank, 0U)));
      CHECK(load.balancedness() ==
            doctest::Approx(static_cast<double>(all) / holding / static_cast<double>(most)));
    }
  }
}

TEST_CASE("balancedness, as SGLang and as vLLM print it") {
  using peerbus::moe::balancedness;
  using peerbus::moe::mean_balancedness;
  using peerbus::moe::total_balancedness;
  CHECK(balancedness(sums{}) == 1);
  CHECK(balancedness(sums{0, 0}) == 1);
  CHECK(balancedness(sums{5, 5, 5}) == 1);
  CHECK(balancedness(sums{8, 0, 0, 0}) == 0.25);
  CHECK(balancedness(sums{232, 232, 232, 140, 130, 130, 130, 224}) ==
        doctest::Approx(181.25 / 232));
  const sums two_layers{8, 0, 4, 4};
  CHECK(mean_balancedness(two_layers, 2) == 0.75);
  CHECK(total_balancedness(two_layers, 2) == doctest::Approx(8.0 / 12));
  CHECK(mean_balancedness(sums{}, 2) == 1);
  CHECK(total_balancedness(sums{}, 0) == 1);
}

TEST_CASE("loads of other sizes are refused") {
  const case_of_replicas given{3, 3, replica_policy::nearest};
  const expert_map map{given.config_of(0), 3};
  test::expect_error(errc::invalid_argument, {"window is 0 steps"}, [&] { expert_load{map, 0}; });
  expert_load load{map, 4};
  test::expect_error(errc::invalid_argument, {"rows of 2 physical experts, expected"},
                     [&] { load.add(std::vector<std::uint32_t>(2)); });
  const expert_map other{{.experts = 4}, 3};
  test::expect_error(errc::invalid_argument, {"a map of 4 experts, 4 physical ones, on 3 ranks"},
                     [&] { load.move_to(other); });
}

}  // namespace expert_load_test
