// SPDX-License-Identifier: MIT
// ctest: serial timeout=300
#include <signal.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/balance/expert_weights.hpp>
#include <peerbus/moe/balance/incremental.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/moving_weights.hpp"
#include "support/oracle.hpp"
#include "support/placed_experts.hpp"
#include "support/ranks.hpp"
#include "support/survivors.hpp"
#include "support/tally.hpp"

// Ranks are killed, and replicas serve their experts: no slot is dropped while one is left.

namespace faults_replicas_test {
namespace {

using peerbus::errc;
using peerbus::rank_id;
using peerbus::codec::int8_per_token;
using peerbus::moe::replica_policy;
using placed_experts::case_of_replicas;
using survivors::at;
using communicator = peerbus::communicator<peerbus::any_transport>;

constexpr peerbus::communicator_options patient{.timeout = std::chrono::minutes{2}};

void die() { ::raise(SIGKILL); }

/// Runs `body(comm)` on `ranks` processes, of which all but `victims` must come to its end.
template <class Body>
void run(std::size_t ranks, std::size_t victims, Body body) {
  const test::tally ended;
  const int status = peerbus::run_local(ranks, [&](peerbus::bootstrap& boot) {
    communicator comm{peerbus::any_transport{peerbus::unified_bus{boot}}, patient};
    body(comm);
    ended.add();
  });
  CHECK(status == 128 + SIGKILL);
  CHECK(ended.count() == ranks - victims);
}

/// Goes on without `victim`, which dies at `where` in a round.
template <class Exchange>
void lose(communicator& comm, Exchange& exchange, case_of_replicas& given, std::size_t victim,
          at where) {
  const std::uint64_t before = comm.view().number();
  const auto mine = placed_experts::inputs_of(given, 3);
  survivors::insist(
      comm,
      [&] {
        if (comm.view().number() != before) return;
        test::scenario from{
            {given.ranks, placed_experts::experts, placed_experts::hidden, placed_experts::top_k},
            mine};
        survivors::risky_round(exchange, comm, from, [&](at now) {
          if (now == where && comm.rank().index() == victim) die();
        });
        test::expect(false, "a rank that does not miss the victim");
      },
      [&] {
        comm.continue_without_the_dead();
        static_cast<void>(exchange.resume());
      });
  given.gone[victim] = true;
}

template <class Layout>
void check(std::size_t ranks, std::size_t victim, at where, replica_policy policy,
           const Layout& layout) {
  CAPTURE(ranks);
  CAPTURE(victim);
  run(ranks, 1, [&](communicator& comm) {
    case_of_replicas given{ranks, 3 * ranks + victim, policy, placed_experts::nearness::own, 2};
    const std::size_t me = comm.rank().index();
    peerbus::moe::exchange exchange{comm, given.config_of(me), int8_per_token{}, layout};
    const auto rounds = [&] {
      for (std::uint64_t round = 0; round < 4; ++round)
        placed_experts::check_round<int8_per_token>(exchange, me, layout, given, round);
      comm.barrier();
    };
    rounds();
    lose(comm, exchange, given, victim, where);
    for (std::size_t e = 0; e < placed_experts::experts; ++e)
      test::expect(!exchange.placement().is_lost(e), "expert ", e, " to have a replica left");
    rounds();
    // The survivors take other experts, also such as have their first replica at the dead.
    given.shuffle(victim);
    exchange.install_experts(given.logical, given.choice_of(me));
    rounds();
  });
}

/// Weights move while batches go on, until `victim` dies in batch `last`. The others keep one map,
/// and move weights again.
void check_moves(std::size_t ranks, std::size_t victim, std::uint64_t last, bool before_commit) {
  CAPTURE(ranks);
  CAPTURE(victim);
  CAPTURE(last);
  run(ranks, 1, [&](communicator& comm) {
    case_of_replicas given{ranks, 7 * ranks + victim, replica_policy::round_robin,
                           placed_experts::nearness::own, 2};
    const std::size_t me = comm.rank().index();
    peerbus::moe::exchange exchange{comm, given.config_of(me), int8_per_token{}};
    peerbus::moe::expert_weights weights{
        comm, exchange.placement(), {.bytes = placed_experts::sizes, .slice = 700}};
    placed_experts::fill(weights, me);
    std::uint64_t batch = 0;
    const auto serve = [&] {
      placed_experts::check_round<int8_per_token>(exchange, me, peerbus::moe::compact{}, given,
                                                  ++batch);
    };
    const auto change_over = [&] {
      const bool is_done = weights.commit(given.choice_of(me), exchange);
      for (std::size_t p = 0; p < given.logical.size(); ++p)
        given.logical[p] = weights.experts().logical(p);
      return is_done;
    };
    weights.begin(placed_experts::redrawn(given, ranks, 2));
    survivors::insist(
        comm,
        [&] {
          if (comm.view().number() != 0) return;
          for (;;) {
            serve();
            static_cast<void>(weights.advance(900));
            if (me == victim && batch == last && before_commit) die();
            static_cast<void>(change_over());
            if (me == victim && batch == last) die();
            test::expect(batch <= last, "a rank that does not miss the victim");
          }
        },
        [&] {
          comm.continue_without_the_dead();
          static_cast<void>(exchange.resume());
        });
    given.gone[victim] = true;
    // A round may have ended with the call that met the death, on all or on none.
    std::vector<peerbus::declared> places;
    for (std::size_t p = 0; p < given.logical.size(); ++p) {
      given.logical[p] = weights.experts().logical(p);
      places.push_back({"a place", std::uint64_t{given.logical[p]}});
      test::expect_equal(exchange.placement().logical(p), given.logical[p], "the exchange's map");
    }
    comm.agree("the maps", places);
    weights.abandon();
    placed_experts::check_tensors(weights, me);
    serve();
    const std::vector<double> loads{9, 1, 8, 2, 7, 3, 6, 4, 5, 0, 50};
    for (std::uint64_t plan = 0; plan < 3; ++plan) {
      if (plan == 0) {
        const auto planned = plan_incremental(loads, weights.experts());
        // Two ranks that hold almost everything have nothing to exchange.
        test::expect(ranks == 3 || planned.after > planned.before, "a better balance");
        test::expect_equal(weights.begin(planned) != 0, planned.moves != 0, "whether experts move");
      } else {
        weights.begin(placed_experts::redrawn(given, plan));
      }
      while (weights.is_moving()) {
        static_cast<void>(weights.advance(3000));
        serve();
        static_cast<void>(change_over());
        placed_experts::check_tensors(weights, me);
      }
      test::expect(weights.experts().is_gone(rank_id{victim}), "the dead rank is known as gone");
      serve();
    }
    comm.barrier();
  });
}

}  // namespace

TEST_CASE("a rank dies while weights move: the others keep one map, and move them again") {
  for (const bool before_commit : {true, false}) {
    check_moves(4, 0, 1, before_commit);
    check_moves(4, 3, 2, before_commit);
    check_moves(5, 1, 5, before_commit);
    check_moves(3, 1, 9, before_commit);
  }
}

TEST_CASE("a rank dies, replicas serve its experts, and nothing is dropped") {
  for (const at where : {at::dispatch, at::sent, at::experts, at::published, at::between}) {
    check(4, 0, where, replica_policy::round_robin, peerbus::moe::compact{});
    check(5, 1, where, replica_policy::nearest, peerbus::moe::expert_slots{});
    check(5, 2, where, replica_policy::fixed, peerbus::moe::rank_major{});
    check(6, 3, where, replica_policy::round_robin, peerbus::moe::slots{});
    check(4, 2, where, replica_policy::weighted, peerbus::moe::padded{});
  }
}

TEST_CASE("an expert is lost when the last of its replicas is gone, and not before") {
  run(5, 2, [](communicator& comm) {
    case_of_replicas given{5, 6, replica_policy::round_robin, placed_experts::nearness::own, 2};
    const std::size_t me = comm.rank().index();
    peerbus::moe::exchange exchange{comm, given.config_of(me), int8_per_token{}};
    std::size_t lost = 0;
    for (const std::size_t victim : {0U, 1U}) {
      lose(comm, exchange, given, victim, at::sent);
      lost = 0;
      for (std::size_t e = 0; e < placed_experts::experts; ++e) {
        test::expect_equal(exchange.placement().is_lost(e), given.is_lost(e), "expert ", e);
        lost += given.is_lost(e) ? 1U : 0U;
      }
      test::expect_equal(lost != 0, victim == 1, "experts that are lost");
    }
    const auto mine = placed_experts::inputs_of(given, 2)[me];
    auto left = mine;
    for (auto& expert : left.experts)
      if (expert != -1 && given.is_lost(static_cast<std::size_t>(expert))) expert = -1;
    const auto got = exchange.dispatch(mine.tokens, {mine.experts, mine.weights});
    test::run_experts(got);
    std::vector<peerbus::bf16> out(mine.tokens.size());
    exchange.combine(got, out);
    test::expect(
        out ==
            oracle::combined<int8_per_token>(
                {5, placed_experts::experts, placed_experts::hidden, placed_experts::top_k}, left),
        "the sums of what is left");
    comm.barrier();
  });
}

}  // namespace faults_replicas_test
