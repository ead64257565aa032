// SPDX-License-Identifier: MIT
// ctest: tsan
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/balance/expert_weights.hpp>
#include <peerbus/moe/balance/incremental.hpp>
#include <peerbus/moe/balance/move_plan.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/plan/check_experts.hpp>

#include "support/groups.hpp"
#include "support/moving_weights.hpp"
#include "support/oracle.hpp"
#include "support/placed_experts.hpp"
#include "support/ranks.hpp"
#include "support/two_level_check.hpp"

namespace expert_weights_test {

// Plans of moves, and weights that move while an exchange goes on.

namespace {

using peerbus::errc;
using peerbus::rank_id;
using peerbus::codec::int8_per_token;
using peerbus::moe::expert_map;
using peerbus::moe::expert_weights;
using peerbus::moe::vacant;
using placed_experts::case_of_replicas;
using placed_experts::check_tensors;
using placed_experts::fill;
using placed_experts::redrawn;
using placed_experts::sizes;
using placed_experts::table;

/// The experts of a rank, without vacant places, in ascending order.
table held(const case_of_replicas& given, const table& logical, std::size_t rank) {
  table experts;
  for (std::size_t p = 0; p < logical.size(); ++p)
    if (given.holder[p] == rank && logical[p] != vacant) experts.push_back(logical[p]);
  std::ranges::sort(experts);
  return experts;
}

/// Checks that each round can be carried out and that the last one gives the ranks what is wanted.
void check_rounds(const case_of_replicas& given, const table& wanted, std::size_t spare) {
  CAPTURE(spare);
  const auto config = given.config_of(0);
  const expert_map before{config, given.ranks};
  const auto rounds = peerbus::moe::plan_moves(before, wanted, spare);
  table now = given.logical;
  CHECK(rounds.size() <= now.size());
  for (const auto& round : rounds) {
    auto after = config;
    after.physical_to_logical = round.physical_to_logical;
    const auto problem = peerbus::moe::detail::objection_to_experts("a round", after, given.ranks);
    CHECK_MESSAGE(!problem, (problem ? problem->what() : ""));
    std::vector<std::size_t> taken(given.ranks);
    std::size_t copied = 0;
    for (const auto& move : round.moves) {
      CHECK(now[move.from] == move.expert);
      CHECK(round.physical_to_logical[move.to] == move.expert);
      CHECK(now[move.to] != move.expert);
      CHECK(++taken[given.holder[move.to]] <= spare);
    }
    for (std::size_t p = 0; p < now.size(); ++p)
      if (round.physical_to_logical[p] != now[p] && round.physical_to_logical[p] != vacant)
        ++copied;
    CHECK(copied == round.moves.size());
    CHECK(round.physical_to_logical != now);
    now = round.physical_to_logical;
  }
  for (std::size_t r = 0; r < given.ranks; ++r)
    CHECK(held(given, now, r) == held(given, wanted, r));
  for (std::size_t p = 0; p < now.size(); ++p) {
    const table later = held(given, wanted, given.holder[p]);
    if (given.logical[p] != vacant && std::ranges::binary_search(later, given.logical[p]))
      CHECK(now[p] == given.logical[p]);
  }
}

/// Moves experts to and fro while batches go on. Every row, sum and tensor is checked.
template <class Communicator>
void check_moves(Communicator& comm, std::uint64_t seed, std::size_t spare,
                 const std::vector<std::size_t>& hosts) {
  const std::size_t me = comm.rank().index();
  case_of_replicas given{comm.size(), seed, peerbus::moe::replica_policy::round_robin};
  if (!hosts.empty()) given.relay_between(hosts, true);
  peerbus::moe::exchange moe{comm, given.config_of(me), int8_per_token{}};
  expert_weights weights{
      comm, moe.placement(), {.bytes = sizes, .spare = spare, .slice = 300 + 100 * seed}};
  fill(weights, me);
  std::uint64_t batch = 0;
  for (std::uint64_t plan = 0; plan < 3; ++plan) {
    const table wanted = redrawn(given, seed + 10 * plan);
    const std::size_t rounds = weights.begin(wanted);
    test::expect_equal(weights.is_moving(), rounds != 0, "whether experts move");
    for (std::size_t ended = 0; ended != rounds;) {
      // Ranks send at a pace of their own.
      static_cast<void>(weights.advance(500 * (me + 1)));
      placed_experts::check_round<int8_per_token>(moe, me, peerbus::moe::compact{}, given, ++batch);
      check_tensors(weights, me);
      const table before = given.logical;
      const bool is_done = weights.commit(given.choice_of(me), moe);
      const expert_map& now = weights.experts();
      for (std::size_t p = 0; p < before.size(); ++p) {
        given.logical[p] = now.logical(p);
        test::expect_equal(moe.placement().logical(p), now.logical(p), "the map of the exchange");
      }
      if (given.logical != before) ++ended;
      test::expect_equal(is_done, ended == rounds, "whether all rounds have ended");
      check_tensors(weights, me);
    }
    for (std::size_t r = 0; r < given.ranks; ++r)
      test::expect(held(given, given.logical, r) == held(given, wanted, r), "what was wanted");
    placed_experts::check_round<int8_per_token>(moe, me, peerbus::moe::compact{}, given, ++batch);
  }
}

template <class Group>
void check_group(std::size_t ranks, std::uint64_t seed, std::size_t spare,
                 const std::vector<std::size_t>& hosts = {}) {
  CAPTURE(ranks);
  const int worst_status =
      Group::run(ranks, [&](auto& comm) { check_moves(comm, seed, spare, hosts); });
  CHECK(worst_status == 0);
}

}  // namespace

TEST_CASE("rounds of moves keep every expert, and come to what is wanted") {
  for (const std::size_t ranks : {1U, 2U, 3U, 5U, 8U})
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
      CAPTURE(ranks);
      CAPTURE(seed);
      const case_of_replicas given{ranks, seed, peerbus::moe::replica_policy::round_robin};
      check_rounds(given, redrawn(given, seed), 1 + seed % 3);
    }
}

TEST_CASE("a ring of experts that each rank has alone moves in one round") {
  case_of_replicas given{3, 1, peerbus::moe::replica_policy::round_robin};
  given.logical = {0, 1, 2, 3, 4, 5};
  given.holder = {0, 0, 1, 1, 2, 2};
  given.experts_of_rank = {2, 2, 2};
  auto config = given.config_of(0);
  config.experts = 6;
  const expert_map before{config, 3};
  const table wanted{4, 1, 2, 0, 3, 5};
  const auto rounds = peerbus::moe::plan_moves(before, wanted, 1);
  REQUIRE(rounds.size() == 1);
  CHECK(rounds[0].physical_to_logical == table{4, 1, 2, 0, 3, 5});
  CHECK(rounds[0].moves.size() == 3);
}

TEST_CASE("nothing moves to ranks that are gone, and no expert is left to them") {
  case_of_replicas given{3, 1, peerbus::moe::replica_policy::round_robin};
  given.logical = {0, 1, 1, 2, 2, 0};
  given.experts_of_rank = {2, 2, 2};
  auto config = given.config_of(0);
  config.experts = 3;
  expert_map before{config, 3};
  before.lose({false, false, true});
  const auto moved = [&](const table& wanted) {
    return peerbus::moe::plan_moves(before, wanted, 1);
  };
  // The last rank is gone: what is wanted there does not count.
  const auto rounds = moved({0, 2, 1, 2, 1, 0});
  REQUIRE(rounds.size() == 1);
  CHECK(rounds[0].physical_to_logical == table{0, 2, 1, 2, 2, 0});
  REQUIRE(rounds[0].moves.size() == 1);
  CHECK(rounds[0].moves[0] == peerbus::moe::expert_move{2, 3, 1});
  test::expect_error(errc::invalid_argument, {"expert 0 would be at ranks only that are gone"},
                     [&] { static_cast<void>(moved({1, 2, 1, 2, 0, 2})); });
}

TEST_CASE("weights move while batches go on, by stores") {
  for (const std::size_t ranks : {1U, 2U, 4U})
    check_group<test::direct_threads>(ranks, ranks, 1 + ranks % 2);
}

TEST_CASE("weights move while batches go on, by puts") {
  check_group<test::staged_threads>(3, 5, 2);
}

TEST_CASE("weights move while hosts relay") {
  test::pretended = {2, true};
  check_group<test::threads_on_hosts>(4, 6, 2, test::pretended.host_of_each(4));
}

TEST_CASE("weights move between processes") { check_group<test::direct_processes>(4, 8, 1); }

TEST_CASE("what is wrong is refused on all ranks, and the old map stands") {
  const int worst_status = test::direct_threads::run(3, [](auto& comm) {
    const std::size_t me = comm.rank().index();
    case_of_replicas given{3, 4, peerbus::moe::replica_policy::round_robin};
    peerbus::moe::exchange moe{comm, given.config_of(me), int8_per_token{}};
    test::expect_error(errc::invalid_argument, {"0 tensors"}, [&] {
      expert_weights{
          comm, moe.placement(), {.bytes = me == 1 ? std::vector<std::size_t>{} : sizes}};
    });
    test::expect_error(errc::mismatch, {"the bytes of the tensors"}, [&] {
      expert_weights{comm, moe.placement(), {.bytes = {8U, 8U + me / 2}}};
    });
    expert_weights weights{comm, moe.placement(), {.bytes = sizes, .spare = 3}};
    fill(weights, me);
    std::uint64_t batch = 0;
    const auto still_works = [&] {
      placed_experts::check_round<int8_per_token>(moe, me, peerbus::moe::compact{}, given, ++batch);
      check_tensors(weights, me);
    };
    const table wanted = redrawn(given, 2);
    table other = wanted;
    for (auto& expert : other)
      if (expert == 3) expert = vacant;
    test::expect_error(errc::invalid_argument, {"lacks expert 3"},
                       [&] { weights.begin(me == 2 ? other : wanted); });
    test::expect_error(errc::mismatch, {"physical_to_logical["},
                       [&] { weights.begin(me == 2 ? given.logical : wanted); });
    test::expect(!weights.is_moving(), "nothing moves");
    still_works();

    // A plan that was made for another map.
    case_of_replicas former = given;
    former.shuffle(1);
    const std::vector<double> loads{9, 1, 8, 2, 7, 3, 6, 4, 5, 0, 50};
    const auto planned = peerbus::moe::plan_incremental(loads, moe.placement());
    const auto stale = peerbus::moe::plan_incremental(loads, expert_map{former.config_of(me), 3});
    test::expect_error(errc::invalid_argument, {"a plan for a map that has expert "},
                       [&] { weights.begin(me == 0 ? stale : planned); });
    test::expect(!weights.is_moving(), "nothing moves");
    test::expect(planned.moves != 0 && weights.begin(planned) != 0, "something moves");
    weights.abandon();

    // Moves that are given up half way.
    const std::size_t rounds = weights.begin(wanted);
    test::expect(rounds != 0, "something moves");
    test::expect_error(errc::invalid_argument, {"moves are under way"},
                       [&] { weights.begin(wanted); });
    if (me != 1) static_cast<void>(weights.advance(700));
    weights.abandon();
    test::expect(!weights.is_moving(), "nothing moves");
    still_works();

    // A batch that is not combined.
    test::expect_equal(weights.begin(wanted), rounds, "rounds");
    while (!weights.advance(1 << 20)) continue;
    comm.barrier();
    const auto mine = placed_experts::inputs_of(given, 1)[me];
    const auto got = moe.dispatch(mine.tokens, {mine.experts, mine.weights});
    test::expect_error(errc::invalid_argument, {"expected all batches to be combined"},
                       [&] { weights.commit(given.choice_of(me), moe); });
    test::run_experts(got);
    std::vector<peerbus::bf16> out(mine.tokens.size());
    moe.combine(got, out);
    check_tensors(weights, me);
    weights.abandon();

    // A canary that was overwritten on its way: the last bytes of the place of every expert here.
    test::expect_equal(weights.begin(wanted), rounds, "rounds");
    if (me == 0)
      for (std::size_t e = 0; e < given.experts_of_rank[0]; ++e)
        std::memset(weights.tensor(e, sizes.size() - 1).data() + 64, 0, 64);
    while (!weights.advance(1 << 20)) continue;
    comm.barrier();
    test::expect_error(errc::mismatch, {"names another in its canary", "rank "},
                       [&] { weights.commit(given.choice_of(me), moe); });
    weights.abandon();
    still_works();
  });
  CHECK(worst_status == 0);
}

}  // namespace expert_weights_test
