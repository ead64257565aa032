// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/communicator/survivors.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/any_transport.hpp>

#include "support/survivors.hpp"

/// Ranks of pretended hosts, which met over TCP as a mesh.
namespace hosts {

using peerbus::any_transport;
using peerbus::errc;
using peerbus::rank_id;
using survivors::at;
using exchange = peerbus::moe::exchange<any_transport, peerbus::codec::int8_per_token>;

/// Makes a transport of a kind.
template <class Transport>
any_transport over(peerbus::bootstrap& boot) {
  return any_transport{Transport{boot}};
}
using transport_maker = any_transport (*)(peerbus::bootstrap&);

/// What a rank serves with.
struct server {
  server(std::unique_ptr<peerbus::bootstrap> met, transport_maker make)
      : boot{std::move(met)},
        comm{make(*boot), {.timeout = std::chrono::minutes{1}}},
        moe{comm, survivors::config, peerbus::codec::int8_per_token{}} {}

  /// Rounds whose results an oracle checks.
  void check_rounds() {
    for (std::uint64_t round = 1; round <= 3; ++round) {
      test::check_round(moe, survivors::scenario_of(comm.view(), moe.placement(), round),
                        comm.rank());
      comm.barrier();
    }
  }

  std::unique_ptr<peerbus::bootstrap> boot;
  peerbus::communicator<any_transport> comm;
  exchange moe;
};

/// The members that have ended.
inline std::vector<rank_id> ended(const server& now) {
  std::vector<rank_id> gone;
  for (const rank_id rank : now.comm.view().members())
    if (rank != now.comm.rank() && now.boot->members()->state(rank) != peerbus::rank_state::running)
      gone.push_back(rank);
  return gone;
}

/// Goes on without the ranks that have died. `end(where)` is called on the way. The connection to a
/// rank that was killed before it had read all ends by a reset, which proves no death, but here
/// nobody ends otherwise. `make(boot)` makes what a rank serves with. Goes on without the ranks
/// `evicted`, too.
template <class Server, class Make, class End>
void go_on(std::unique_ptr<Server>& now, Make make, End end,
           const std::vector<rank_id>& evicted = {}) {
  bool vouches = false;
  for (int tries = 0; tries < 20; ++tries) {
    try {
      end(at::agreement);
      std::vector<rank_id> out = vouches ? ended(*now) : std::vector<rank_id>{};
      for (const rank_id rank : evicted)
        if (std::find(out.begin(), out.end(), rank) == out.end()) out.push_back(rank);
      if (out.empty())
        now->comm.continue_without_the_dead();
      else
        now->comm.continue_without(out);
      now = peerbus::survivors(now->comm, [&](std::unique_ptr<peerbus::bootstrap> met) {
        end(at::resume);
        return make(std::move(met));
      });
      return;
    } catch (const peerbus::error& problem) {
      if (problem.code() != errc::peer_dead && problem.code() != errc::unreachable) throw;
      vouches = vouches || problem.code() == errc::unreachable;
    }
  }
  test::fail("the ranks that live do not find each other");
}

}  // namespace hosts
