// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include <doctest/doctest.h>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/detail/algorithm_choice.hpp>
#include <peerbus/collective/team_map.hpp>
#include <peerbus/core/cost_table.hpp>

namespace algorithm_test {

namespace {

using namespace peerbus::collective;
using detail::algorithm_choice;
using enum algorithm;
using need = algorithm_choice::order_need;

constexpr std::size_t scratch = std::size_t{1} << 20U;

constexpr team_shape shape_of(std::size_t ranks, page_access access, std::size_t group_ranks = 1) {
  return {team_map{ranks, scratch, access != page_access::loads}, access, group_ranks};
}

/// Costs of which each has a digit of its own in a sum.
constexpr access_costs digits{.round_us = 1000,
                              .message_us = 100,
                              .byte_ns = 10,
                              .ring_byte_ns = 7,
                              .near_byte_ns = 3,
                              .reduce_byte_ns = 1};

/// What each algorithm costs for 8 ranks and 4000 bytes, worked out by hand.
struct costed {
  algorithm by;
  page_access access;
  std::size_t group_ranks;
  choice_of operation;
  double us;
};
constexpr costed expected_costs[]{
    {one_shot, page_access::loads, 1, choice_of::all_reduce, 1000 + 700 + 4 * (70 + 8)},
    {one_shot, page_access::puts, 1, choice_of::all_gather, 1000 + 700 + 4 * 70},
    {one_shot, page_access::planes, 4, choice_of::all_gather, 1000 + 700 + 4 * (4 * 10 + 3 * 3)},
    {two_shots, page_access::puts, 1, choice_of::all_reduce, 2 * 1700 + 4 * (70 / 4.0 + 1)},
    {doubling, page_access::puts, 1, choice_of::all_reduce, 3 * 1100 + 4 * (70 + 8)},
    {doubling, page_access::puts, 1, choice_of::all_gather, 3 * 1100 + 4 * 70},
    {ring, page_access::puts, 1, choice_of::all_reduce,
     1700 + 14 * 1100 + 4 * (14 / 8.0) * (7 + 1)},
    {two_levels, page_access::planes, 4, choice_of::all_reduce,
     3 * 1700 + 4 * (10 / 4.0 + 2 * 3 + 1.5)},
    {two_levels, page_access::planes, 4, choice_of::all_gather, 2 * 1700 + 4 * (10 + 8 * 3)},
    {two_levels, page_access::planes, 2, choice_of::all_reduce,
     3 * 1700 + 4 * (3 * 10 / 2.0 + 2 * 3 + 3)},
    {one_shot, page_access::puts, 1, choice_of::reduce_scatter, 1000 + 700 + 4 * (70 + 8)},
    {ring, page_access::puts, 1, choice_of::reduce_scatter, 1700 + 7 * 1100 + 4 * 7 * (7 + 2)},
    {two_levels, page_access::planes, 4, choice_of::reduce_scatter,
     2 * 1700 + 4 * (10 + 16 * 3 + (8 + 2))},
    {one_shot, page_access::planes, 4, choice_of::broadcast, 1000 + 700 + 4 * (4 * 10 + 3 * 3)},
    {two_levels, page_access::planes, 2, choice_of::broadcast, 2 * 1700 + 4 * (3 * 10 + 2 * 3)}};

constexpr bool is_about(double a, double b) { return a - b < 1e-6 && b - a < 1e-6; }

constexpr algorithm cheapest_of_all(choice_of operation, std::size_t bytes, const team_shape& of,
                                    const access_costs& costs, bool may_reorder) {
  using enum algorithm;
  constexpr algorithm all[]{one_shot, doubling, two_shots, ring, two_levels};
  return cheapest(all, operation, bytes, of, costs, may_reorder);
}

constexpr access_costs network = access_costs::assumed(page_access::puts);
static_assert(cheapest_of_all(choice_of::all_gather, 8, shape_of(4, page_access::puts), network,
                              false) == one_shot);
static_assert(cheapest_of_all(choice_of::all_gather, 8, shape_of(64, page_access::puts), network,
                              false) == doubling);
static_assert(cheapest_of_all(choice_of::all_reduce, 1 << 20, shape_of(64, page_access::puts),
                              network, true) == two_shots);
constexpr team_shape two_hosts = shape_of(8, page_access::planes, 4);
constexpr access_costs shared_network = access_costs::assumed(page_access::planes);
static_assert(cheapest_of_all(choice_of::all_reduce, 1 << 20, two_hosts, shared_network, true) ==
              two_levels);
static_assert(cheapest_of_all(choice_of::all_reduce, 1 << 20, two_hosts, shared_network, false) ==
              two_shots);

}  // namespace

TEST_CASE("costs of algorithms") {
  for (const costed& each : expected_costs) {
    CAPTURE(name_of(each.by));
    CAPTURE(each.group_ranks);
    const team_shape of = shape_of(8, each.access, each.group_ranks);
    CHECK(is_about(cost_us(each.by, each.operation, 4000, of, digits), each.us));
  }
  // Operands of several slices take as many rounds more.
  const team_shape of = shape_of(8, page_access::puts);
  const std::size_t slice = slice_of(doubling, choice_of::all_gather, of);
  const double first = cost_us(doubling, choice_of::all_gather, slice, of, digits);
  const double second = cost_us(doubling, choice_of::all_gather, slice + 1, of, digits);
  CHECK(is_about(second - first, 3300 + 0.07));
}

TEST_CASE("algorithms that a team cannot use cost infinitely much") {
  const auto cost = [](algorithm by, choice_of operation, const team_shape& of) {
    return cost_us(by, operation, 8, of, digits);
  };
  const double infinite = std::numeric_limits<double>::infinity();
  const team_shape puts = shape_of(8, page_access::puts);
  CHECK(cost(doubling, choice_of::all_gather, shape_of(8, page_access::loads)) == infinite);
  CHECK(cost(ring, choice_of::all_reduce, shape_of(8, page_access::loads)) == infinite);
  CHECK(cost(two_shots, choice_of::all_reduce, shape_of(2, page_access::puts)) == infinite);
  CHECK(cost(two_shots, choice_of::all_gather, puts) == infinite);
  CHECK(cost(two_shots, choice_of::reduce_scatter, puts) == infinite);
  CHECK(cost(doubling, choice_of::reduce_scatter, puts) == infinite);
  CHECK(cost(ring, choice_of::reduce_scatter, shape_of(8, page_access::loads)) == infinite);
  CHECK(cost(ring, choice_of::broadcast, puts) == infinite);
  CHECK(cost(doubling, choice_of::broadcast, puts) == infinite);
  CHECK(cost(two_levels, choice_of::broadcast, puts) == infinite);
  CHECK(cost(two_levels, choice_of::all_reduce, puts) == infinite);
  CHECK(cost(two_levels, choice_of::all_reduce, shape_of(8, page_access::planes, 8)) == infinite);
  CHECK(cost(doubling, choice_of::all_gather, shape_of(1, page_access::puts)) == infinite);
  CHECK(cost(automatic, choice_of::all_gather, puts) == infinite);
}

TEST_CASE("a round takes no more than pages and slots hold, in whole elements") {
  for (const std::size_t ranks : {2U, 3U, 5U, 8U, 64U})
    for (const std::size_t element : {1U, 4U, 24U}) {
      CAPTURE(ranks);
      CAPTURE(element);
      const team_shape of = shape_of(ranks, page_access::puts);
      const std::size_t row = whole_slice(doubling, choice_of::all_reduce, of, element);
      CHECK(row % element == 0);
      CHECK(row > 0);
      CHECK(ranks * row <= of.map.page_bytes);
      for (std::size_t rows = 1; rows < ranks; rows *= 2)
        CHECK(std::min(rows, ranks - rows) * row <= of.map.slot_bytes);
      const std::size_t part = whole_slice(ring, choice_of::all_reduce, of, element) / ranks;
      CHECK(part % element == 0);
      CHECK(part <= of.map.slice_bytes(ranks));
    }
  CHECK(whole_slice(doubling, choice_of::all_reduce, shape_of(64, page_access::puts), 4096) == 0);
}

TEST_CASE("the choice of a team") {
  const team_shape puts = shape_of(64, page_access::puts);
  SUBCASE("follows the costs") {
    const algorithm_choice chosen{puts, network, {}};
    CHECK(chosen.of_all_gather(8) == doubling);
    CHECK(chosen.of_all_reduce(0, need::result) == doubling);
    CHECK(chosen.of_all_reduce(1 << 20, need::result) == two_shots);
    access_costs free_messages = network;
    free_messages.message_us = 0;
    CHECK(algorithm_choice{puts, free_messages, {}}.of_all_gather(8) == one_shot);
  }
  SUBCASE("divides operands from one_shot_bytes on, exactly") {
    const algorithm_choice chosen{puts, network, {.one_shot_bytes = 60}};
    CHECK(chosen.of_all_reduce(60, need::result) == doubling);
    CHECK(chosen.of_all_reduce(61, need::result) == two_shots);
    const algorithm_choice of_two{shape_of(2, page_access::puts), network, {.one_shot_bytes = 60}};
    CHECK(of_two.of_all_reduce(61, need::result) == one_shot);
  }
  SUBCASE("takes the forced algorithm wherever it is possible") {
    const algorithm_choice chosen{puts, network, {.forced = one_shot, .one_shot_bytes = 60}};
    CHECK(chosen.of_all_reduce(1 << 20, need::result) == one_shot);
    const algorithm_choice levels{puts, network, {.forced = two_levels}};
    CHECK(levels.of_all_reduce(8, need::none) == doubling);
  }
  SUBCASE("keeps the order of ranks unless told otherwise") {
    const algorithm_choice usual{two_hosts, shared_network, {}};
    CHECK(usual.of_all_reduce(1 << 20, need::none) == two_levels);
    CHECK(usual.of_all_reduce(1 << 20, need::result) == two_shots);
    const algorithm_choice free{two_hosts, shared_network, {.may_reorder = true}};
    CHECK(free.of_all_reduce(1 << 20, need::result) == two_levels);
    CHECK(free.of_all_reduce(1 << 20, need::sources) == two_shots);
    const algorithm_choice forced{two_hosts, shared_network, {.forced = ring}};
    CHECK(forced.of_all_reduce(8, need::result) == ring);
    CHECK(forced.of_all_reduce(1 << 20, need::sources) == two_shots);
    CHECK(forced.of_reduce_scatter(8, need::result) == ring);
    CHECK(usual.of_reduce_scatter(1 << 20, need::none) == two_levels);
    CHECK(usual.of_reduce_scatter(1 << 20, need::result) == one_shot);
    CHECK(free.of_reduce_scatter(1 << 20, need::result) == two_levels);
    CHECK(usual.of_broadcast(1 << 20) == two_levels);
    CHECK(usual.of_broadcast(8) == one_shot);
  }
}

TEST_CASE("costs that say nothing choose the first algorithm that is possible") {
  const double most = std::numeric_limits<double>::max();
  for (const page_access access : {page_access::loads, page_access::puts, page_access::planes})
    for (const std::size_t ranks : {1U, 2U, 8U})
      for (const double cost : {0.0, most}) {
        CAPTURE(access);
        CAPTURE(ranks);
        CAPTURE(cost);
        const access_costs same{cost, cost, cost, cost, cost, cost};
        const std::size_t near =
            access == page_access::planes ? std::min<std::size_t>(ranks, 4) : 1;
        const team_shape of = shape_of(ranks, access, near);
        const algorithm_choice chosen{of, same, {.may_reorder = true, .has_trials = true}};
        for (const std::size_t bytes : {std::size_t{0}, std::size_t{8}, std::size_t{1} << 30U}) {
          CAPTURE(bytes);
          CHECK_FALSE(chosen.is_close(bytes));
          CHECK(chosen.of_all_reduce(bytes, need::none) == one_shot);
          CHECK(chosen.of_all_reduce(bytes, need::sources) == one_shot);
          CHECK(chosen.of_all_gather(bytes) == one_shot);
          CHECK(chosen.of_reduce_scatter(bytes, need::none) == one_shot);
          CHECK(chosen.of_broadcast(bytes) == one_shot);
        }
      }
  // An algorithm that is not possible is none of several, whatever the others cost.
  const access_costs dear{most, most, most, most, most, most};
  const std::array candidates{two_shots, two_levels};
  CHECK(cheapest(candidates, choice_of::all_reduce, 0, shape_of(8, page_access::puts), dear,
                 true) == two_shots);
}

TEST_CASE("sizes for which one shot and two are tried") {
  const access_costs assumed = access_costs::assumed(page_access::loads);
  const team_shape loads = shape_of(8, page_access::loads);
  const algorithm_choice chosen{loads, assumed, {.has_trials = true}};
  CHECK_FALSE(chosen.is_close(0));
  CHECK_FALSE(chosen.is_close(512));
  CHECK(chosen.is_close(513));
  CHECK(chosen.is_close(32 << 10U));
  CHECK_FALSE(chosen.is_close((32 << 10U) + 1));  // One shot costs 4.2 times as much.
  const algorithm_choice many{shape_of(64, page_access::loads), assumed, {.has_trials = true}};
  CHECK(many.of_all_reduce(512, need::sources) == one_shot);
  CHECK(many.of_all_reduce(513, need::sources) == two_shots);
  CHECK_FALSE(algorithm_choice{loads, assumed, {}}.is_close(1024));
  // Of four ranks two and a half times as many, whatever the size.
  const algorithm_choice four{shape_of(4, page_access::loads), assumed, {.has_trials = true}};
  CHECK(four.is_close(512 << 10U));
  CHECK_FALSE(four.is_close((512 << 10U) + 1));
  const team_shape of_two = shape_of(2, page_access::loads);
  CHECK_FALSE(algorithm_choice{of_two, assumed, {.has_trials = true}}.is_close(1024));
}

TEST_CASE("costs come from the table where it has them") {
  peerbus::cost_table table;
  CHECK_FALSE(detail::has_costs_of(table, page_access::puts));
  table.set("collective.puts.round_us", 2.5);
  table.set("collective.puts.byte_ns", 0.25);
  table.set("collective.loads.message_us", 9);
  CHECK(detail::has_costs_of(table, page_access::puts));
  CHECK_FALSE(detail::has_costs_of(table, page_access::planes));
  const access_costs costs = detail::costs_from(table, page_access::puts);
  CHECK(costs.round_us == 2.5);
  CHECK(costs.byte_ns == 0.25);
  CHECK(costs.message_us == network.message_us);
  CHECK(detail::costs_from(table, page_access::planes).round_us ==
        access_costs::assumed(page_access::planes).round_us);
}

}  // namespace algorithm_test
