// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/fault.hpp>

#include "bootstrap/support.hpp"
#include "conformance/exchange_suite.hpp"
#include "support/exchange_check.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"
#include "support/search.hpp"
#include "support/tally.hpp"

/// Groups whose shapes, layouts, codecs and faults are drawn from a seed: every row is right, and a
/// call that fails ends the operations of all ranks, by an error that names it.
namespace random_soak {

using communicator = peerbus::communicator<peerbus::any_transport>;
using peerbus::rank_id;
namespace moe = peerbus::moe;

/// A group, and the faults of its ranks.
struct group {
  std::uint64_t seed;
  std::size_t ranks;
  peerbus::fault_schedule faults;  ///< of all ranks
  bool has_failure;                ///< a request of the victim fails
  rank_id victim;
  std::uint64_t request;
  peerbus::errc fail_with;

  static group draw(std::uint64_t seed) {
    oracle::random from{seed};
    group drawn{};
    drawn.seed = seed;
    drawn.ranks = 1 + from.below(4);
    drawn.faults.seed = seed;
    drawn.faults.delay.chance = from.unit();
    drawn.faults.reorder.chance = from.unit();
    drawn.faults.longest_delay = 1 + from.below(40);
    drawn.faults.held_calls = 2 + from.below(100);
    drawn.faults.stall = {.chance = 0.01, .limit = 5};
    drawn.faults.stall_time = std::chrono::microseconds{from.below(1'000)};
    drawn.has_failure = from.below(2) == 0;
    drawn.victim = rank_id{from.below(drawn.ranks)};
    drawn.request = 1 + from.below(600);
    drawn.fail_with = from.below(2) == 0 ? peerbus::errc::system : peerbus::errc::peer_dead;
    return drawn;
  }
  [[nodiscard]] peerbus::fault_schedule faults_of(rank_id rank) const {
    peerbus::fault_schedule made = faults;
    if (has_failure && rank == victim) made.fail = peerbus::fault_rule::once_at(request);
    made.fail_with = fail_with;
    return made;
  }
};

inline conformance::exchange_case draw_case(oracle::random& from) {
  conformance::exchange_case drawn{};
  drawn.experts = 1 + from.below(24);
  drawn.hidden = 16 * (1 + from.below(9));
  drawn.top_k = 1 + from.below(std::min<std::size_t>(drawn.experts, 8));
  drawn.max_tokens = 1 + from.below(16);
  drawn.routes = static_cast<oracle::routes>(from.below(5));
  drawn.tokens = static_cast<conformance::counts>(from.below(4));
  for (std::size_t& bytes : drawn.attachments) bytes = 4 * from.below(8);
  drawn.outputs = from.below(2) == 0 ? moe::outputs_at::expert : moe::outputs_at::home;
  drawn.in_flight = 1 + from.below(3);
  drawn.note_bytes = from.below(20);
  drawn.output_attachment = 4 * from.below(4);
  return drawn;
}

/// Does rounds of an exchange, each of other tokens.
template <class Codec, class Layout>
void serve(communicator& comm, oracle::random& from, const Layout& layout) {
  const conformance::exchange_case drawn = conformance::fit<Codec>(draw_case(from));
  auto config = conformance::config_of(drawn);
  config.stream_from = conformance::stream_from(comm.rank(), drawn.experts);
  moe::exchange exchange{comm, config, oracle::codec_of<Codec>::make(), layout};
  for (std::size_t rounds = 1 + from.below(20); rounds != 0; --rounds)
    test::check_round(exchange, conformance::make_scenario(drawn, comm.size(), from.next()),
                      comm.rank(), layout);
}

/// Makes exchanges of any layout, one after the other, and serves by them.
inline void serve_all(communicator& comm, std::uint64_t seed) {
  using peerbus::codec::bf16;
  using peerbus::codec::int8_per_token;
  oracle::random from{~seed};
  for (std::size_t exchanges = 1 + from.below(4); exchanges != 0; --exchanges)
    switch (from.below(7)) {
      case 0:
        serve<int8_per_token>(comm, from, moe::compact{.alignment = 1 + from.below(9)});
        break;
      case 1: serve<int8_per_token>(comm, from, moe::expert_slots{}); break;
      case 2: serve<int8_per_token>(comm, from, moe::automatic_by_rank{}); break;
      case 3: serve<bf16>(comm, from, moe::padded{}); break;
      case 4: serve<bf16>(comm, from, moe::rank_major{}); break;
      case 5: serve<bf16>(comm, from, moe::slots{}); break;
      default: serve<bf16>(comm, from, moe::automatic{}); break;
    }
  comm.barrier();
}

/// One rank's part over a `Transport` with faults.
template <class Transport>
void take_part(const group& now, peerbus::bootstrap& boot) {
  communicator comm{
      peerbus::any_transport{peerbus::fault<Transport>{boot, now.faults_of(boot.rank())}},
      {.timeout = std::chrono::minutes{1}}};
  serve_all(comm, now.seed);
}

/// Fails unless `problem` is what a rank is told of the call that fails.
inline void check_error(const group& now, bool is_victim, const peerbus::error& problem) {
  using peerbus::errc;
  std::string says = "rank " + std::to_string(now.victim.index()) + " failed";
  if (is_victim) says = "failed by the fault schedule with seed " + std::to_string(now.seed);
  // Who ends by peer_dead seems to follow another rank, so the others may be told of any rank.
  if (!is_victim && now.fail_with == errc::peer_dead) says = "rank ";
  const std::string_view text = problem.what();
  test::expect(problem.code() == (is_victim ? now.fail_with : errc::peer_dead) &&
                   text.find(says) != text.npos,
               "the error of a call that fails, '", says, "', not '", text, "'");
}

/// Runs groups over a `Transport`, whose ranks meet as by `Start`: as many as a soak of `all` has,
/// or PEERBUS_SOAK_GROUPS, from the seed PEERBUS_SEED on.
template <class Transport, class Start>
void check(std::uint64_t all) {
  test::for_each_seed("PEERBUS_SOAK_GROUPS", all, [](std::uint64_t seed) {
    const group now = group::draw(seed);
    CAPTURE(now.ranks);
    const test::time_limit limit{120};
    const test::belongings before;
    const test::tally failed, served;
    const int worst_status = Start::run(now.ranks, [&](peerbus::bootstrap& boot) {
      const bool is_victim = now.has_failure && boot.rank() == now.victim;
      try {
        take_part<Transport>(now, boot);
      } catch (const peerbus::error& problem) {
        if (!now.has_failure) throw;
        check_error(now, is_victim, problem);
        if (is_victim) {
          failed.add();
          throw;
        }
      }
      served.add();
    });
    CHECK(worst_status == (failed.count() == 0 ? 0 : 1));
    CHECK(failed.count() + served.count() == now.ranks);
    CHECK(test::belongings{} == before);
  });
}

}  // namespace random_soak
