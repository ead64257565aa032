// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/fabric.hpp>
#include <peerbus/transport/fabric/connect.hpp>
#include <peerbus/transport/refinements.hpp>

#include "conformance/window_suite.hpp"
#include "fabric/support.hpp"
#include "support/lent.hpp"
#include "support/ranks.hpp"

// The numbered semantics of `transport` over TCP by libfabric: by the order of messages, and by
// confirmed puts with a short queue.

namespace window_test {

namespace {
using fabric_test::both;
using fabric_test::plain;

constexpr std::size_t all_sizes[] = {1, 2, 3, 4, 5, 8};
constexpr std::size_t few_sizes[] = {1, 2, 3};
}  // namespace

TEST_CASE("of two ranks that connect one asks, and no rank asks more than half of the others") {
  for (const std::size_t n : {1U, 2U, 3U, 4U, 7U, 8U, 64U}) {
    CAPTURE(n);
    for (const peerbus::rank_id rank : peerbus::all_ranks{n}) {
      std::size_t asked = 0;
      for (const peerbus::rank_id peer : peerbus::all_ranks{n}) {
        CAPTURE(rank.index());
        CAPTURE(peer.index());
        const bool is_asked = peerbus::detail::ofi::asks(rank, peer, n);
        CHECK((is_asked != peerbus::detail::ofi::asks(peer, rank, n)) == (rank != peer));
        asked += is_asked ? 1 : 0;
      }
      CHECK(asked <= n / 2);
    }
  }
}

TEST_CASE("a fresh window is zero") {
  for (const std::size_t n : few_sizes) conformance::check_fresh_windows<plain>(n);
}

TEST_CASE("put, signal, put_signal and wait among all ranks") {
  for (const std::size_t n : all_sizes) conformance::check_all_to_all<both>(n);
}

TEST_CASE("get") {
  for (const std::size_t n : all_sizes) conformance::check_get<plain>(n);
}

TEST_CASE("what does not exist is refused before a byte is written") {
  for (const std::size_t n : few_sizes) conformance::check_ranges<plain>(n);
}

TEST_CASE("memory outside windows is refused") {
  for (const std::size_t n : few_sizes) conformance::check_foreign_memory<plain>(n);
}

TEST_CASE("signals hold 64 bits and never fall") {
  for (const std::size_t n : few_sizes) conformance::check_signals<both>(n);
}

TEST_CASE("short waits learn of a rank that left") {
  for (const std::size_t n : few_sizes) conformance::check_short_waits<plain>(n);
}

TEST_CASE("a signal comes after its puts, and signals in order") {
  for (const std::size_t n : all_sizes) conformance::check_stream<both>(n);
}

TEST_CASE("a barrier orders what came before it") {
  for (const std::size_t n : all_sizes) conformance::check_barrier<plain>(n, 50);
}

TEST_CASE("windows are independent") {
  for (const std::size_t n : all_sizes) conformance::check_many_windows<plain>(n);
}

TEST_CASE("memory that no window can be made of is refused on all ranks") {
  const int worst_status = peerbus::run_local(2, [](peerbus::bootstrap& boot) {
    peerbus::fabric bus{boot};
    test::check_refused_memory(bus);
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a run of puts is written as a whole or not at all") {
  const int worst_status = peerbus::run_local(2, [](peerbus::bootstrap& boot) {
    constexpr std::size_t bytes = test::lent::part_bytes;
    const auto soon = [] { return peerbus::deadline::after(std::chrono::seconds{60}); };
    peerbus::fabric bus{boot};
    const auto own = std::make_shared<test::lent>();
    const auto first = bus.adopt_window(test::lent::half(own, 0), soon());
    const auto second = bus.adopt_window(test::lent::half(own, 1), soon());
    const auto target = bus.make_window({.bytes = 2 * bytes, .signals = 1}, soon());
    std::fill(own->data.begin(), own->data.end(), std::byte{7});
    const std::vector<std::byte> outside(bytes, std::byte{9});
    for (const peerbus::rank_id peer : peerbus::all_ranks{2}) {
      const peerbus::put_piece pieces[] = {{0, bus.local(first)}, {bytes, outside}};
      test::expect_code(bus.put_run(peer, target, pieces), peerbus::errc::invalid_argument,
                        "a run with a piece outside of windows");
    }
    test::expect_ok(bus.quiet(), "quiet");
    static_cast<void>(boot.allgather({}, soon(), "refused"));
    for (const std::byte value : bus.local(target))
      test::expect(value == std::byte{0}, "no byte of a refused run");
    static_cast<void>(boot.allgather({}, soon(), "compared"));
    // Neighbours in memory, of two windows.
    const peerbus::put_piece pieces[] = {{0, bus.local(first)}, {bytes, bus.local(second)}};
    const peerbus::rank_id other{1 - boot.rank().index()};
    test::expect_ok(bus.put_run(other, target, pieces), "a run across two windows");
    test::expect_ok(bus.signal(other, target, peerbus::signal_id{0}, 1), "signal");
    test::expect_ok(bus.wait(target, peerbus::signal_id{0}, 1, soon(), other), "wait");
    for (const std::byte value : bus.local(target))
      test::expect(value == std::byte{7}, "each byte of a run across two windows");
    static_cast<void>(boot.allgather({}, soon(), "the end"));
  });
  CHECK(worst_status == 0);
}

}  // namespace window_test
