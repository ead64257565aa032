// SPDX-License-Identifier: MIT
#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/relay.hpp>
#include <peerbus/moe/two_level_exchange.hpp>
#include <peerbus/transport/fabric.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "conformance/exchange_suite.hpp"
#include "support/die_after.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"
#include "support/tally.hpp"
#include "support/two_level_check.hpp"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // Of `two_level_exchange`.

namespace two_levels_test {

using peerbus::rank_id;
using hosts = test::on_hosts<peerbus::unified_bus, peerbus::fabric>;
using two_levels = peerbus::moe::two_level_exchange<hosts, peerbus::codec::int8_per_token>;

constexpr conformance::exchange_case shape{24, 64, 4, 9};
constexpr peerbus::moe::exchange_config config{
    .experts = 24, .hidden = 64, .top_k = 4, .max_tokens = 9};

TEST_CASE("two levels, between hosts by TCP") {
  for (const bool interleaved : {false, true}) {
    test::pretended = {2, interleaved};
    const int worst_status = peerbus::run_local(4, [](peerbus::bootstrap& boot) {
      peerbus::communicator comm{hosts{boot}};
      two_levels moe{comm, config, peerbus::moe::relay::always};
      for (std::uint64_t seed = 0; seed < 6; ++seed)
        test::two_levels::check_round(moe, conformance::make_scenario(shape, comm.size(), seed),
                                      comm.rank());
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE(
    "two levels: a rank killed in the middle is noticed by all, also those it never talks to") {
  test::pretended = {2, false};
  for (const bool in_combine : {false, true}) {
    CAPTURE(in_combine);
    const test::tally met;
    const test::tally told;
    const int worst_status = peerbus::run_local(4, [&](peerbus::bootstrap& boot) {
      peerbus::communicator comm{hosts{boot}};
      two_levels moe{comm, config, peerbus::moe::relay::always};
      const auto from = conformance::make_scenario(shape, comm.size(), 1);
      const oracle::input& mine = from.inputs[comm.rank().index()];
      test::two_levels::check_round(moe, from, comm.rank());
      comm.barrier();
      const bool dies = comm.rank() == rank_id{3};
      const peerbus::moe::routing route{std::span<const std::int64_t>{mine.experts}, mine.weights};
      if (dies && !in_combine) test::die_after(comm, met, 3);
      if (!in_combine) met.add();
      try {
        const auto got = moe.dispatch(mine.tokens, route);
        if (dies) test::die_after(comm, met, 3);
        met.add();
        std::vector<peerbus::bf16> out(mine.tokens.size());
        moe.combine(got, out);
        test::fail("combined without rank 3");
      } catch (const peerbus::error& problem) {
        // A call may find the connection broken before the rank is known to be dead.
        test::expect(problem.code() == peerbus::errc::peer_dead ||
                         problem.code() == peerbus::errc::unreachable,
                     problem.what());
        test::expect(std::string_view{problem.what()}.find("rank 3") != std::string_view::npos,
                     problem.what());
      }
      told.add();
    });
    CHECK(worst_status == 128 + SIGKILL);
    CHECK(told.count() == 3);
  }
}

}  // namespace two_levels_test

#pragma GCC diagnostic pop
