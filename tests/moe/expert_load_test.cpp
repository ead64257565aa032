// SPDX-License-Identifier: MIT
// ctest: tsan
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/balance/expert_load.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/expert_map.hpp>

#include "support/groups.hpp"
#include "support/oracle.hpp"
#include "support/placed_experts.hpp"
#include "support/ranks.hpp"

namespace expert_load_test {

// The rows of experts over a window of steps.

namespace {

using peerbus::errc;
using peerbus::codec::int8_per_token;
using peerbus::moe::expert_load;
using peerbus::moe::expert_map;
using peerbus::moe::replica_policy;
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

}  // namespace

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
