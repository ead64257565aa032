// SPDX-License-Identifier: MIT
// ctest: serial timeout=300
#include "support/plan.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/bootstrap/join_running.hpp>
#include <peerbus/bootstrap/launch_settings.hpp>
#include <peerbus/bootstrap/with_vacancies.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/collective.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/communicator/admission.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "bootstrap/support.hpp"
#include "support/exchange_check.hpp"
#include "support/oracle.hpp"
#include "support/plan_file.hpp"
#include "support/search.hpp"
#include "support/survivors.hpp"

// Ranks of one host by plans, of which every row of every batch is checked, and a reduction after
// each.

namespace plan_test {
namespace {

using peerbus::rank_id;
using peerbus::codec::int8_per_token;
namespace moe = peerbus::moe;

using plans::phase;
using plans::plan;
using plans::read_plan;

/// What a rank serves with, until the group has others.
template <class Codec, class Layout>
struct serving {
  std::unique_ptr<peerbus::bootstrap> boot;
  peerbus::communicator<peerbus::any_transport> comm;
  peerbus::moe::exchange<peerbus::any_transport, Codec, Layout> moe;
  peerbus::collective::team team;
  peerbus::admission door;

  serving(std::unique_ptr<peerbus::bootstrap> met, const peerbus::launch_settings& place)
      : boot{std::move(met)},
        comm{peerbus::any_transport{peerbus::unified_bus{*boot}},
             {.timeout = std::chrono::minutes{1}}},
        moe{comm, survivors::config, Codec{}, Layout{}},
        team{comm},
        door{comm, place} {}
};

/// How the rank of `place` serves, and comes to do so.
template <class Codec, class Layout>
struct on_one_host {
  using server = std::unique_ptr<serving<Codec, Layout>>;
  peerbus::launch_settings place;

  [[nodiscard]] server make(std::unique_ptr<peerbus::bootstrap> boot) const {
    return std::make_unique<serving<Codec, Layout>>(std::move(boot), place);
  }
  [[nodiscard]] server begin(const plans::slots& first) const {
    return make(peerbus::with_vacancies(std::make_unique<peerbus::environment_bootstrap>(
                                            plans::seat_among(first, place), test::patience()),
                                        {first.begin(), first.end()}, place.size));
  }
  [[nodiscard]] server join() const {
    return peerbus::join_running(
        place, [this](auto boot) { return make(std::move(boot)); }, test::patience());
  }
  void go_on(server& now, const plans::slots& evicted) const {
    if (evicted.empty())
      now->comm.continue_without_the_dead();
    else
      now->comm.continue_without(std::vector<rank_id>(evicted.begin(), evicted.end()));
    static_cast<void>(now->moe.resume());
    now->team.resume();
  }
  [[nodiscard]] bool admit(server& now) const {
    if (now->moe.next_dispatch() % 2 == 0) return false;
    auto next = now->door.admit([this](auto boot) { return make(std::move(boot)); });
    if (next) now = std::move(*next);
    return next.has_value();
  }
  void serve(serving<Codec, Layout>& now) const {
    test::check_round(
        now.moe,
        survivors::scenario_of(now.comm.view(), now.moe.placement(), now.moe.next_dispatch()),
        rank_id{place.rank}, Layout{});
    std::int64_t ranks = std::int64_t{1} << place.rank;
    peerbus::collective::all_reduce(now.team, std::span{&ranks, 1}, peerbus::collective::sum{});
    std::int64_t members = 0;
    for (const rank_id rank : now.comm.view().members()) members |= std::int64_t{1} << rank.index();
    test::expect_equal(ranks, members, "a bit of each member");
    now.comm.barrier();
  }
};

/// Makes up `count` phases of up to six ranks. In each but the first, whose ranks all have to meet,
/// every rank that is there is killed or leaves with a chance of a sixth, and every other one
/// comes, or is killed on its way, with one of five in twelve. Of two ranks that were there and are
/// killed, the second one may be so while others agree, and one that was there may be put out.
plan draw_plan(std::size_t count, oracle::random& from) {
  plan made;
  while (made.size() < count) {
    phase next;
    for (std::size_t rank = 0; rank < 6; ++rank) {
      const bool is_there = !made.empty() && plans::has(made.back().serve, rank);
      const std::size_t drawn = from.below(12);
      if (!made.empty() && (drawn == 0 || (!is_there && drawn == 1)))
        next.killed.push_back(rank);
      else if (is_there ? drawn > 1 : drawn < 5)
        next.serve.push_back(rank);
    }
    const plans::slots before = made.empty() ? plans::slots{} : made.back().serve;
    if (const auto there = plans::among(before, next.killed);
        there.size() > 1 && there.back() == next.killed.back() && from.below(2) == 0) {
      next.killed_in_agreement.push_back(next.killed.back());
      next.killed.pop_back();
    }
    if (const auto stay = plans::among(before, next.serve); stay.size() > 1 && from.below(3) == 0) {
      next.evicted.push_back(stay[from.below(stay.size())]);
      std::erase(next.serve, next.evicted.front());
    }
    // Somebody is there all the time, to take in the others.
    if (!next.serve.empty() &&
        (made.empty() || std::any_of(next.serve.begin(), next.serve.end(), [&](std::size_t rank) {
           return plans::has(made.back().serve, rank);
         })))
      made.push_back(std::move(next));
  }
  return made;
}

/// Plays a plan. `kind` chooses codec and layout; `seed` the moments of the kills. Returns how many
/// batches all ranks together have served.
std::uint64_t play(const plan& phases, std::uint64_t kind, std::uint64_t seed) {
  peerbus::launch_settings place;
  for (const phase& each : phases) place.size = std::max(place.size, each.all().back() + 1);
  place.job = "plan_test/" + std::to_string(::getpid()) + "/" + std::to_string(seed);
  const auto body = [&](plans::board& shared, std::size_t rank) {
    peerbus::launch_settings mine = place;
    mine.rank = mine.local_rank = rank;
    const auto live = [&](auto ways) { plans::live(phases, shared, rank, std::move(ways)); };
    switch (kind % 3) {
      case 0: return live(on_one_host<int8_per_token, moe::compact>{mine});
      case 1: return live(on_one_host<peerbus::codec::bf16, moe::expert_slots>{mine});
      default: return live(on_one_host<int8_per_token, moe::padded>{mine});
    }
  };
  oracle::random moments{seed};
  plans::job served{phases, body, [&] { return std::chrono::microseconds{moments.below(30'000)}; },
                    6, 128 + SIGKILL};
  served.run();
  return served.batches();
}

}  // namespace

TEST_CASE("plans") {
  const std::size_t found = plans::for_each_plan({"small", "large"}, [](const plan& read) {
    const std::uint64_t seeds = std::max<std::uint64_t>(1, test::soak_repetitions(2));
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      CAPTURE(seed);
      play(read, seed, seed);
    }
  });
  CHECK(found >= 12);
}

TEST_CASE("plans that a seed makes up") {
  std::uint64_t batches = 0, kills = 0, evictions = 0, arrivals = 0;
  test::for_each_seed("PEERBUS_PLANS", 4, [&](std::uint64_t seed) {
    oracle::random from{seed};
    const plan drawn = draw_plan(12, from);
    batches += play(drawn, seed, seed);
    for (std::size_t p = 0; p < drawn.size(); ++p) {
      kills += drawn[p].killed.size() + drawn[p].killed_in_agreement.size();
      evictions += drawn[p].evicted.size();
      for (const std::size_t rank : drawn[p].serve)
        arrivals += p != 0 && !plans::has(drawn[p - 1].serve, rank) ? 1U : 0U;
    }
  });
  MESSAGE(batches, " batches, ", kills, " kills, ", evictions, " put out, ", arrivals,
          " that came");
}

TEST_CASE("a plan that names nobody, or unknown ranks") {
  struct wrong_plan {
    std::string text;
    const char* why;
  };
  const wrong_plan wrong[]{
      {"[[0, 1], []]", "expected: phase 2: a rank that stays"},
      {"[[0, 1], [-1]]", "expected: phase 2: a rank that stays"},
      {"[[0, 99]]", "expected: phase 1: rank 99 less than"},
      {"[[0, 1e300]]", "expected: phase 1: rank 1e+300 less than"},
      {"[[0, 0.5]]", "expected: phase 1: a whole number as rank 0.5"},
      {"[[0, 0]]", "expected: phase 1: rank 0 once"},
      {"[]", "expected: a list of phases"},
      {"[[0], 1]", "expected: phase 2: a list of ranks"},
      {R"([{"evicted": [1]}])", "ranks"},
      {R"([[0, 1], {"ranks": [0, 1], "evicted": [1]}])", "expected: phase 2: rank 1 once"},
      {R"([[0], {"ranks": [0], "evicted": [1]}])",
       "expected: phase 2: evicted of the phase before"},
      {R"([[0, 1], {"ranks": [0], "killed_in_agreement": [1]}])",
       "expected: phase 2: a rank that is killed"}};
  for (const wrong_plan& one : wrong) {
    CAPTURE(one.text);
    CHECK_THROWS_WITH(read_plan(nlohmann::json::parse(one.text)), doctest::Contains{one.why});
  }
}

}  // namespace plan_test
