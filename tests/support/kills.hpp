// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/collective/all_reduce.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/fault.hpp>

#include "bootstrap/support.hpp"
#include "support/exchange_check.hpp"
#include "support/oracle.hpp"
#include "support/process.hpp"
#include "support/ranks.hpp"
#include "support/search.hpp"
#include "support/survivors.hpp"
#include "support/tally.hpp"

/// Groups of which a rank ends at a random moment, each drawn from a seed: the others are told
/// which rank it was, none hangs, and nothing is left behind.
namespace kills {

using communicator = peerbus::communicator<peerbus::any_transport>;
using peerbus::rank_id;
namespace moe = peerbus::moe;

/// What the rank is about to do when the time to its end begins.
enum class moment : std::uint8_t { set_up, idle, dispatch, combine, collective, count };

/// What else happens, by `peerbus::fault`. The last two end the rank at a request instead.
enum class trouble : std::uint8_t { none, delays, stalls, drop, failure, count };

/// A group and how one of its ranks ends.
struct episode {
  std::uint64_t seed;
  std::size_t ranks;
  rank_id victim;
  moment where;
  trouble what;
  std::uint64_t turn;               ///< the number of the round
  std::chrono::microseconds delay;  ///< from `where` until the end
  std::uint64_t request;            ///< the number of the request that ends it

  /// Draws a group of up to `most` ranks.
  static episode draw(std::uint64_t seed, std::size_t most) {
    oracle::random from{seed};
    episode drawn{};
    drawn.seed = seed;
    drawn.ranks = 2 + from.below(most - 1);
    drawn.victim = rank_id{from.below(drawn.ranks)};
    drawn.where = static_cast<moment>(from.below(static_cast<std::size_t>(moment::count)));
    drawn.what = static_cast<trouble>(from.below(static_cast<std::size_t>(trouble::count)));
    drawn.turn = drawn.where == moment::set_up ? 0 : from.below(6);
    drawn.delay =
        std::chrono::microseconds{from.below(drawn.where == moment::set_up ? 20'000 : 1'000)};
    drawn.request = 1 + from.below(400);
    return drawn;
  }
  /// The faults of `rank`.
  [[nodiscard]] peerbus::fault_schedule faults_of(rank_id rank) const {
    peerbus::fault_schedule made;
    made.seed = seed;
    if (what == trouble::stalls) made.stall = {.chance = 0.01};
    if (rank == victim && what == trouble::drop) {
      made.drop = peerbus::fault_rule::once_at(request);
      made.on_drop = [] { ::raise(SIGKILL); };
    }
    if (rank == victim && what == trouble::failure)
      made.fail = peerbus::fault_rule::once_at(request);
    return made;
  }
  [[nodiscard]] bool ends_at_request() const { return what >= trouble::drop; }
};

/// Ends a rank, if it is the victim, at the moment of its episode.
class killer {
 public:
  killer(const episode& now, rank_id rank)
      : is_victim_{rank == now.victim && !now.ends_at_request()}, now_{now} {}
  void operator()(moment where) {
    if (is_victim_ && where == now_.where && turns_++ == now_.turn)
      std::thread{[delay = now_.delay] {
        std::this_thread::sleep_for(delay);
        ::raise(SIGKILL);
      }}.detach();
  }

 private:
  bool is_victim_;
  const episode& now_;
  std::uint64_t turns_ = 0;
};

/// Dispatches, combines and adds up until an operation fails. What can be checked is.
template <class Codec, class Layout>
void serve(const episode& now, communicator& comm, killer& end) {
  moe::exchange exchange{comm, survivors::config, Codec{}, Layout{}};
  peerbus::collective::team team{comm};
  std::vector<float> sums(1'000);
  for (std::uint64_t round = 1;; ++round) {
    const auto from =
        survivors::scenario_of(comm.view(), exchange.placement(), now.seed + 2 * round);
    test::check_round(exchange, from, comm.rank(), Layout{});
    survivors::risky_round(exchange, comm, from, [&](survivors::at where) {
      if (where == survivors::at::dispatch) end(moment::dispatch);
      if (where == survivors::at::experts) end(moment::combine);
    });
    end(moment::collective);
    std::fill(sums.begin(), sums.end(), static_cast<float>(round));
    peerbus::collective::all_reduce(team, sums, peerbus::collective::sum{});
    test::expect_equal(sums.back(), static_cast<float>(round * comm.size()), "sum");
    end(moment::idle);
    if (now.where == moment::idle) std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
}

/// One rank's part over a `Transport`.
template <class Transport>
void take_part(const episode& now, peerbus::bootstrap& boot) {
  killer end{now, boot.rank()};
  end(moment::set_up);
  communicator comm{now.what == trouble::none ? peerbus::any_transport{Transport{boot}}
                                              : peerbus::any_transport{peerbus::fault<Transport>{
                                                    boot, now.faults_of(boot.rank())}},
                    {.timeout = std::chrono::minutes{1}}};
  if (now.seed % 2 == 0)
    serve<peerbus::codec::int8_per_token, moe::compact>(now, comm, end);
  else
    serve<peerbus::codec::bf16, moe::expert_slots>(now, comm, end);
}

/// Returns whether `text` says that `rank` has ended.
inline bool names(std::string_view text, rank_id rank) {
  const std::string name = "rank " + std::to_string(rank.index());
  return text.find(name + " died") != text.npos || text.find(name + " failed") != text.npos;
}

/// Plays an episode over a `Transport`, whose ranks meet as by `Start`.
template <class Transport, class Start>
void check(const episode& now) {
  const test::time_limit limit{60};
  const test::belongings before;
  const test::tally told;
  const int worst_status = Start::run(now.ranks, [&](peerbus::bootstrap& boot) {
    const std::size_t files = test::open_files();
    try {
      take_part<Transport>(now, boot);
    } catch (const peerbus::error& problem) {
      if (boot.rank() == now.victim) throw;
      test::expect(names(problem.text(), now.victim), "rank ", now.victim.index(),
                   " to be named, not '", problem.what(), "'");
      test::expect(problem.code() == peerbus::errc::peer_dead, "peer_dead, not '", problem.what(),
                   "'");
    }
    test::expect(test::open_files() <= files, "no more open files than the ", files, " before, not",
                 test::list_open_files());
    told.add();
  });
  CHECK(worst_status == (now.what == trouble::failure ? 1 : 128 + SIGKILL));
  CHECK(told.count() == now.ranks - 1);
  CHECK(test::belongings{} == before);
}

/// Plays as many episodes as a soak of `episodes` has, or PEERBUS_KILLS, from the seed PEERBUS_SEED
/// on.
template <class Transport, class Start>
void check_many(std::size_t most_ranks, std::uint64_t episodes = 70) {
  test::for_each_seed("PEERBUS_KILLS", episodes, [most_ranks](std::uint64_t seed) {
    const auto now = episode::draw(seed, most_ranks);
    CAPTURE(now.ranks);
    CAPTURE(now.victim.index());
    CAPTURE(static_cast<int>(now.where));
    CAPTURE(static_cast<int>(now.what));
    check<Transport, Start>(now);
  });
}

}  // namespace kills
