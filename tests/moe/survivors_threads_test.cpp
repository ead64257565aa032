// SPDX-License-Identifier: MIT
// ctest: tsan
#include <cstddef>
#include <stdexcept>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>

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

TEST_CASE("a transport without the memory of all ranks says that it does not go on") {
  const int status = test::threads_over<test::indirect<peerbus::loopback>>::run(2, [](auto& comm) {
    test::expect_error(peerbus::errc::unsupported,
                       {"continue_without_the_dead", "memory of all", "unified_bus"},
                       [&] { comm.continue_without_the_dead(); });
  });
  CHECK(status == 0);
}

}  // namespace survivors_threads_test
