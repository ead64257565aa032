// SPDX-License-Identifier: MIT
// ctest: tsan
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/kept_rows.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>

#include "support/exchange_check.hpp"
#include "support/indirect.hpp"
#include "support/ranks.hpp"
#include "support/survivors.hpp"
#include "support/tally.hpp"

// Ranks that are threads end by an exception, and the others go on.

namespace survivors_threads_test {
namespace {

using peerbus::codec::int8_per_token;
using survivors::at;
using survivors::victim;
using threads = test::any_over<peerbus::any_transport, test::threads_over<peerbus::loopback>>;

struct end : std::runtime_error {
  end() : std::runtime_error{"ends as the test wants"} {}
};

template <class Layout = peerbus::moe::compact>
void check(std::size_t ranks, const std::vector<victim>& victims, const Layout& layout = {}) {
  const test::tally ended;
  const int status = threads::run(ranks, [&](auto& comm) {
    survivors::check<int8_per_token>(comm, victims, [] { throw end{}; }, layout);
    ended.add();
  });
  CHECK(status == 1);
  CHECK(ended.count() == ranks - victims.size());
}

}  // namespace

TEST_CASE("a rank ends anywhere in a round, and the others go on") {
  for (std::size_t where = 0; where < static_cast<std::size_t>(at::agreement); ++where) {
    CAPTURE(where);
    check(2, {{1, at{static_cast<std::uint8_t>(where)}}});
    check(6, {{0, at{static_cast<std::uint8_t>(where)}}});
  }
  check(5, {{2, at::sent}}, peerbus::moe::expert_slots{});
  check(5, {{0, at::published}}, peerbus::moe::rank_major{});
}

TEST_CASE("several at once, while others agree or resume, and one after the other") {
  check(6, {{1, at::dispatch}, {4, at::agreement}});
  check(6, {{5, at::sent}, {0, at::resume}});
  check(4, {{2, at::sent}, {0, at::experts}, {3, at::barrier}});
}

TEST_CASE("rows that were kept until their batch became void do not object any more") {
  const int status = threads::run(3, [](auto& comm) {
    auto one = survivors::config;
    one.in_flight = 1;
    peerbus::moe::exchange moe{comm, one, int8_per_token{}};
    const std::vector<peerbus::bf16> tokens(one.hidden, peerbus::bf16{1.0F});
    const std::vector<std::int32_t> experts{0, 3, -1};  // Of ranks 0 and 1.
    const std::vector<float> weights(3, 1.0F);
    const auto dispatch = [&] { return moe.dispatch(tokens, {experts, weights}); };
    const auto rows = dispatch();
    std::optional<peerbus::moe::kept_rows> kept;
    if (comm.rank().index() == 0) kept = moe.keep(rows);
    if (comm.rank().index() == 2) throw end{};
    // The next dispatch has begun, so nobody has these rows any more.
    test::expect_error(peerbus::errc::peer_dead, {"rank 2"},
                       [&] { static_cast<void>(dispatch()); });
    comm.continue_without_the_dead();
    moe.resume();
    test::expect(!moe.awaits_combine(rows.ticket()), "rows that are void");
    std::vector<peerbus::bf16> out(one.hidden);
    for (int i = 0; i < 2; ++i) {
      const auto got = dispatch();
      test::run_experts(got);
      moe.combine(got, out);
      if (comm.rank().index() == 0) {
        std::optional<peerbus::moe::kept_rows> again{moe.keep(got)};
        kept.reset();  // Leaves what others keep.
        kept = std::move(again);
      }
      test::expect_error(
          comm.rank().index() == 0 ? peerbus::errc::invalid_argument : peerbus::errc::refused,
          {"exchange::keep still keeps"}, [&] { static_cast<void>(dispatch()); });
      kept.reset();
    }
  });
  CHECK(status == 1);
}

TEST_CASE("a transport without the memory of all ranks says that it does not go on") {
  const int status = test::threads_over<test::indirect<peerbus::loopback>>::run(2, [](auto& comm) {
    test::expect_error(peerbus::errc::unsupported,
                       {"continue_without_the_dead", "memory of all", "unified_bus"},
                       [&] { comm.continue_without_the_dead(); });
  });
  CHECK(status == 0);
}

}  // namespace survivors_threads_test
