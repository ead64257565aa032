// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/communicator/group_view.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>

#include "support/exchange_check.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

/// Groups that lose ranks and go on.
namespace survivors {

using peerbus::errc;
using peerbus::rank_id;
namespace moe = peerbus::moe;

constexpr moe::exchange_config config{
    .experts = 9, .hidden = 32, .top_k = 3, .max_tokens = 8, .in_flight = 2};

/// What the ranks of a view put in: nothing from those that are gone, and nothing for their
/// experts.
inline test::scenario scenario_of(const peerbus::group_view& view, const moe::expert_map& experts,
                                  std::uint64_t seed) {
  const std::size_t ranks = view.gone().size();
  test::scenario made{{ranks, config.experts, config.hidden, config.top_k}, {}};
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::size_t count = view.contains(rank_id{r}) ? (r + seed) % 9 : 0;
    made.inputs.push_back(oracle::make_input(made.shape, r, count, oracle::routes::uniform, seed));
    for (auto& expert : made.inputs.back().experts)
      if (expert >= 0 && !view.contains(experts.owner(static_cast<std::size_t>(expert))))
        expert = -1;
  }
  return made;
}

/// Where a rank ends.
enum class at : std::uint8_t {
  dispatch,   ///< before a dispatch
  sent,       ///< between its halves
  experts,    ///< before a combine
  published,  ///< between its halves
  between,    ///< after a combine, on its way to the next dispatch
  barrier,    ///< before a barrier
  agreement,  ///< when another is gone, before it agrees on that
  resume,     ///< after the agreement
  count
};

/// Does a round of operations that are not checked, as a rank may end in it.
template <class Exchange, class Communicator, class End>
void risky_round(Exchange& exchange, Communicator& comm, const test::scenario& from, End end) {
  const oracle::input& mine = from.inputs[comm.rank().index()];
  end(at::dispatch);
  const auto ticket = exchange.dispatch_send(mine.tokens, {mine.experts, mine.weights});
  end(at::sent);
  const auto got = exchange.dispatch_recv(ticket);
  test::run_experts(got);
  end(at::experts);
  exchange.combine_send(got);
  end(at::published);
  std::vector<peerbus::bf16> out(mine.tokens.size());
  exchange.combine_recv(got, out);
  end(at::between);
  // Whoever needed nothing of the rank that is gone learns of it here.
  end(at::barrier);
  comm.barrier();
}

/// Does `attempt` until it works. Whenever it fails as a rank is gone, goes on without it by
/// `recover`.
template <class Communicator, class Attempt, class Recover>
void insist(Communicator& comm, Attempt attempt, Recover recover) {
  bool is_whole = true;
  for (;;) {
    try {
      if (!is_whole) recover();
      is_whole = true;
      return attempt();
    } catch (const peerbus::error& problem) {
      if (problem.code() != errc::peer_dead && problem.code() != errc::poisoned) throw;
      is_whole = false;
    }
    test::expect(comm.view().number() < 100, "an end of the views");
  }
}

/// A rank that ends, and where.
struct victim {
  std::size_t rank;
  at where;
};

/// The group's ranks do rounds. The victims end one after the other by `die`, each in a round of
/// its own, or at once if `where` lies in the recovery from the one before. The others go on each
/// time, and their rounds are checked.
template <class Codec, class Layout, class Communicator, class Die>
void check(Communicator& comm, const std::vector<victim>& victims, Die die,
           const Layout& layout = {}) {
  moe::exchange exchange{comm, config, Codec{}, layout};
  std::uint64_t combined = 0;
  const auto next_scenario = [&] {
    return scenario_of(comm.view(), exchange.placement(), 100 * comm.view().number() + combined);
  };
  const auto check_rounds = [&] {
    for (int round = 0; round < 3; ++round, ++combined) {
      test::check_round(exchange, next_scenario(), comm.rank(), layout);
      comm.barrier();
    }
  };
  std::size_t next = 0;
  const auto end = [&](at where) {
    for (std::size_t i = next; i < victims.size(); ++i)
      if (victims[i].where == where && comm.rank().index() == victims[i].rank) return die();
  };
  check_rounds();
  while (next < victims.size()) {
    const std::uint64_t before = comm.view().number();
    const auto from = next_scenario();
    // Of the victims of this turn, only the first ends in the round.
    std::size_t after = next + 1;
    while (after < victims.size() && victims[after].where >= at::agreement) ++after;
    insist(
        comm,
        [&] {
          if (comm.view().number() == before)
            risky_round(exchange, comm, from, [&](at where) {
              if (where == victims[next].where && comm.rank().index() == victims[next].rank) die();
            });
          check_rounds();
        },
        [&] {
          end(at::agreement);
          const auto& view = comm.continue_without_the_dead();
          test::expect(view.number() > before, "another view");
          end(at::resume);
          const std::uint64_t complete = exchange.resume().combined;
          test::expect(complete == combined || complete == combined + 1, "what is complete: is ",
                       complete, ", combined ", combined);
          combined = complete;
        });
    next = after;
    std::size_t gone = 0;
    for (const victim& each : victims) gone += !comm.view().contains(rank_id{each.rank}) ? 1U : 0U;
    test::expect_equal(gone, next, "ranks that are gone");
    test::expect_equal(comm.view().members().size(), comm.size() - next, "members");
  }
}

}  // namespace survivors
