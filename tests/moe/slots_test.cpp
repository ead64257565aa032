// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <chrono>
#include <cstddef>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>

#include "moe/refusals.hpp"
#include "support/exchange_check.hpp"
#include "support/groups.hpp"
#include "support/ranks.hpp"

namespace slots_test {

// What layouts with slots promise about refusals and about rows that nobody combines.

namespace {

using peerbus::errc;
using peerbus::rank_id;
using peerbus::codec::int8_per_token;
using peerbus::moe::expert_slots;
using peerbus::moe::slots;
using refusals::config;

#define PEERBUS_TEST_GROUPS test::direct_threads, test::staged_threads

}  // namespace

TEST_CASE_TEMPLATE("slots: a bad dispatch is refused on all ranks", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {1U, 2U, 3U}) {
    refusals::check_bad_dispatch<Group, slots>(n);
    refusals::check_bad_dispatch<Group, expert_slots>(n);
  }
}

TEST_CASE_TEMPLATE("slots: a rank that does not come is named", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {2U, 3U}) refusals::check_time_out<Group, slots>(n);
}

TEST_CASE_TEMPLATE("slots: a dispatch takes the rows of its set, even if it is refused", Group,
                   PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {1U, 2U, 3U}) {
    CAPTURE(n);
    const int worst_status = Group::run(n, [](auto& comm) {
      peerbus::moe::exchange moe{comm, config, int8_per_token{}, expert_slots{}};
      const refusals::arguments good;
      const auto rows = moe.dispatch(good.token_span(), good.route());
      const bool bad = comm.rank() == rank_id{comm.size() - 1};
      test::expect_error(bad ? errc::invalid_argument : errc::refused, {"dispatch 2"}, [&] {
        (void)moe.dispatch(good.token_span(), good.route(), {.refuse = bad});
      });
      std::vector<peerbus::bf16> out(good.tokens.size());
      test::expect_error(errc::invalid_argument,
                         {"combine was given the rows of dispatch 1, which is given up to a later "
                          "dispatch, expected one that is received"},
                         [&] { moe.combine(rows, out); });
      refusals::check_works(moe, comm.size(), comm.rank(), 3);
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE_TEMPLATE("slots: rows that are not combined wait for all ranks to give them up", Group,
                   PEERBUS_TEST_GROUPS) {
  const int worst_status = Group::run(3, [](auto& comm) {
    peerbus::moe::exchange moe{comm, config, int8_per_token{}, slots{}};
    auto done = comm.make_window(0, comm.size());
    const refusals::arguments good;
    (void)moe.dispatch(good.token_span(), good.route());
    const rank_id absent{2};
    if (comm.rank() == absent) {
      // Still there, so that nothing but the deadline ends the others' waits.
      const auto patient = peerbus::deadline::after(std::chrono::seconds{60});
      for (const rank_id peer : {rank_id{0}, rank_id{1}})
        test::expect_ok(done.wait(static_cast<peerbus::signal_id>(peer.index()), 1, patient, peer),
                        "wait");
      return;
    }
    const auto short_time = peerbus::deadline::after(std::chrono::milliseconds{50});
    test::expect_error(
        errc::timed_out,
        {"dispatch 2: waited ", "rank 2 (epoch 0, expected 1; ",
         "they still have rows of an earlier dispatch in its memory"},
        [&] { (void)moe.dispatch_send(good.token_span(), good.route(), {.until = short_time}); });
    test::expect_ok(done.signal(absent, static_cast<peerbus::signal_id>(comm.rank().index()), 1),
                    "signal");
  });
  CHECK(worst_status == 0);
}

TEST_CASE("slots: ranks with different layouts") {
  const int worst_status = test::direct_threads::run(2, [](auto& comm) {
    test::expect_error(
        errc::mismatch, {"layout is slots on rank 0 but expert_slots on rank 1"}, [&] {
          if (comm.rank() == rank_id{0})
            peerbus::moe::exchange moe{comm, config, int8_per_token{}, slots{}};
          else
            peerbus::moe::exchange moe{comm, config, int8_per_token{}, expert_slots{}};
        });
  });
  CHECK(worst_status == 0);
}

#undef PEERBUS_TEST_GROUPS

}  // namespace slots_test
