// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <thread>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/wait_readable.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/traffic_class.hpp>

#include "support/bytes.hpp"
#include "support/ranks.hpp"
#include "support/repetitions.hpp"
#include "support/tally.hpp"

// What transports do that keep the classes of traffic apart.

namespace conformance {

namespace bulk_detail {

using peerbus::bootstrap;
using peerbus::deadline;
using peerbus::errc;
using peerbus::rank_id;
using peerbus::signal_id;
using peerbus::traffic_class;
using peerbus::window_shape;
using std::chrono::milliseconds;

constexpr signal_id first_signal{0};
constexpr std::size_t mib = std::size_t{1} << 20U;

inline deadline soon() { return deadline::after(std::chrono::seconds{60}); }
inline rank_id other_than(rank_id rank) { return rank_id{1 - rank.index()}; }
/// What a rank puts in a round.
inline std::uint64_t pattern_of(rank_id rank, std::uint64_t round) {
  return rank.index() * 17 + round * 29;
}
inline void expect_put(std::span<const std::byte> bytes, rank_id rank, std::uint64_t round,
                       const char* what) {
  test::expect_equal(test::bytes_of_pattern(bytes, pattern_of(rank, round)), bytes.size(), what,
                     " that are right, one after the other");
}

/// Large puts of bulk windows beside signals of latency windows, each byte right. Sources and
/// targets of each class lie in windows of either class. `bytes`: longer than the limit of what is
/// in flight, and no multiple of a slice.
template <class Group>
void check_large_bulk_puts(std::size_t bytes = 3 * mib + 776) {
  const auto body = [bytes](auto& comm) {
    const rank_id own = comm.rank();
    const rank_id peer = other_than(own);
    auto bulk =
        comm.make_window({.bytes = 3 * bytes, .signals = 1, .traffic = traffic_class::bulk});
    auto quick = comm.make_window(2 * bytes, 2);
    for (std::uint64_t round = 1; round <= 3; ++round) {
      const auto from_bulk = bulk.local().subspan(bytes, bytes);
      const auto from_quick = quick.local().first(bytes);
      test::fill_pattern(from_bulk, pattern_of(own, round));
      test::fill_pattern(from_quick, pattern_of(own, round));
      test::expect_ok(bulk.put(peer, 0, from_quick), "a bulk put from a latency window");
      test::expect_ok(bulk.signal(peer, first_signal, round), "a bulk signal");
      test::expect_ok(quick.put(peer, bytes, from_bulk.first(999)), "a put from a bulk window");
      for (std::uint64_t n = 1; n <= 50; ++n) {
        const std::uint64_t value = 50 * round + n;
        test::expect_ok(quick.signal(peer, first_signal, value), "a signal");
        test::expect_ok(quick.wait(first_signal, value, soon(), peer), "a wait");
      }
      expect_put(quick.local().subspan(bytes, 999), peer, round, "bytes");
      test::expect_ok(bulk.wait(first_signal, round, soon(), peer), "a wait for bulk puts");
      expect_put(bulk.local().first(bytes), peer, round, "bulk bytes");
      test::expect_ok(bulk.get(peer, bytes, bulk.local().subspan(2 * bytes, bytes)), "get");
      test::expect_ok(bulk.flush(peer), "flush");
      expect_put(bulk.local().last(bytes), peer, round, "bytes got");
      comm.barrier();  // Sources and targets are written again.
    }
  };
  CHECK(Group::run(2, body) == 0);
}

/// A thread that streams beside a thread that signals.
template <class Group>
void check_streaming_thread(std::size_t bytes = mib / 2 + 8) {
  const auto body = [bytes](auto& comm) {
    constexpr std::uint64_t rounds = 20;
    const rank_id own = comm.rank();
    const rank_id peer = other_than(own);
    auto bulk =
        comm.make_window({.bytes = 2 * bytes, .signals = 2, .traffic = traffic_class::bulk});
    auto quick = comm.make_window(64, 1);
    std::thread streaming{[&]() noexcept {
      // What does not hold ends the process.
      for (std::uint64_t round = 1; round <= rounds; ++round) {
        const auto source = bulk.local().last(bytes);
        test::fill_pattern(source, pattern_of(own, round));
        test::expect_ok(bulk.put_signal(peer, 0, source, first_signal, round), "put_signal");
        test::expect_ok(bulk.wait(first_signal, round, soon(), peer), "wait");
        expect_put(bulk.local().first(bytes), peer, round, "bytes");
        test::expect_ok(bulk.flush(peer), "flush");
        test::expect_ok(bulk.signal(peer, signal_id{1}, round), "signal that all was compared");
        test::expect_ok(bulk.wait(signal_id{1}, round, soon(), peer), "wait to go on");
      }
    }};
    for (std::uint64_t n = 1; n <= test::repetitions(2000); ++n) {
      test::expect_ok(quick.signal(peer, first_signal, n), "a signal");
      test::expect_ok(quick.wait(first_signal, n, soon(), peer), "a wait");
    }
    streaming.join();
    comm.barrier();
  };
  CHECK(Group::run(2, body) == 0);
}

/// A rank that waits for latency traffic moves bulk traffic too.
template <class Group>
void check_bulk_in_latency_waits(std::size_t bytes = 8 * mib) {
  const auto body = [bytes](auto& comm) {
    auto bulk = comm.make_window({.bytes = bytes, .signals = 1, .traffic = traffic_class::bulk});
    auto quick = comm.make_window(64, 1);
    const rank_id peer = other_than(comm.rank());
    // Rank 0 sends and rank 1 receives within waits for a signal that comes after all is there.
    if (comm.rank() == rank_id{0}) {
      test::expect_ok(bulk.put_signal(peer, 0, bulk.local(), first_signal, 1), "a bulk put");
      test::expect_ok(quick.wait(first_signal, 1, soon(), peer), "a wait of the sender");
    } else {
      while (bulk.value(first_signal) == 0)
        static_cast<void>(quick.wait(first_signal, 1, deadline::after(milliseconds{20}), peer));
      test::expect_ok(quick.signal(peer, first_signal, 1), "a signal");
    }
    comm.barrier();
  };
  CHECK(Group::run(2, body) == 0);
}

/// A bulk signal wakes a rank that sleeps on the descriptor of its transport.
template <class Transport>
void check_bulk_wakes() {
  const int worst_status = peerbus::run_local(2, [](bootstrap& boot) {
    Transport bus{boot};
    const int descriptor = bus.arrival_fd();  // Asked for before there is bulk traffic.
    const auto bulk = bus.make_window({.signals = 1, .traffic = traffic_class::bulk}, soon());
    const bool sleeps = boot.rank() == rank_id{0};
    for (std::uint64_t n = 1; n <= 5; ++n) {
      if (sleeps) test::expect(bus.arm(), "armed");
      static_cast<void>(boot.allgather({}, soon(), "armed"));
      if (!sleeps) test::expect_ok(bus.signal(rank_id{0}, bulk, first_signal, n), "signal");
      if (sleeps) {
        peerbus::detail::wait_readable(descriptor, soon());
        bus.disarm();
        test::expect_ok(bus.wait(bulk, first_signal, n, soon(), rank_id{1}), "wait");
      }
      static_cast<void>(boot.allgather({}, soon(), "woken"));
    }
  });
  CHECK(worst_status == 0);
}

/// Ranks that disagree on the class of a window all learn who wants which.
template <class Transport>
void check_class_mismatch() {
  const int worst_status = peerbus::run_local(3, [](bootstrap& boot) {
    const auto shape_of = [&](bool differs) {
      return window_shape{.bytes = 64,
                          .signals = 1,
                          .traffic = differs ? traffic_class::bulk : traffic_class::latency};
    };
    {
      peerbus::communicator comm{Transport{boot}};
      test::expect_error(errc::mismatch, {"traffic", "latency", "bulk", "rank 2"}, [&] {
        static_cast<void>(comm.make_window(shape_of(boot.rank() == rank_id{2})));
      });
      test::expect_error(errc::mismatch, {"traffic", "latency", "bulk", "rank 1"}, [&] {
        static_cast<void>(comm.make_window(shape_of(boot.rank() == rank_id{1})));
      });
      comm.barrier();
    }
    // The transport compares as well, whether or not there is bulk traffic already.
    Transport bus{boot};
    for (int repeat = 0; repeat < 2; ++repeat) {
      test::expect_error(
          errc::mismatch, {"window: rank 0 makes it for bulk, but rank 1 for latency traffic"},
          [&] { static_cast<void>(bus.make_window(shape_of(boot.rank() == rank_id{0}), soon())); });
      const auto both = {bus.make_window(shape_of(true), soon()).part().shape.traffic,
                         bus.make_window(shape_of(false), soon()).part().shape.traffic};
      test::expect(std::equal(both.begin(), both.end(),
                              std::begin({traffic_class::bulk, traffic_class::latency})),
                   "classes of windows");
    }
  });
  CHECK(worst_status == 0);
}

/// A signal passes the bulk puts of `bytes` before it, of which at most `most_sent` bytes leave
/// while their sender makes no call. `make(boot)` returns the transport.
template <class Make>
void check_signal_passes_bulk(Make make, std::size_t bytes, std::size_t most_sent) {
  const test::tally sent;
  const test::tally seen;
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    peerbus::communicator comm{make(boot)};
    test::expect(comm.bus().capabilities().traffic_classes, "classes");
    auto bulk = comm.make_window({.bytes = bytes, .signals = 1, .traffic = traffic_class::bulk});
    auto quick = comm.make_window(64, 1);
    comm.barrier();
    const rank_id peer = other_than(comm.rank());
    if (comm.rank() == rank_id{0}) {
      test::fill_bytes(bulk.local(), std::byte{7});
      // Rank 1 makes no call: a put that waited for it would never return.
      test::expect_ok(bulk.put_signal(peer, 0, bulk.local(), first_signal, 1), "a bulk put");
      test::expect_ok(quick.signal(peer, first_signal, 1), "a signal");
      sent.add();
      while (seen.count() == 0) std::this_thread::yield();  // No call, so no slice.
    } else {
      while (sent.count() == 0) std::this_thread::yield();
      test::expect_ok(quick.wait(first_signal, 1, soon(), peer), "a wait for the signal");
      for (int i = 0; i < 100; ++i)
        test::expect_equal(bulk.value(first_signal), 0U, "the signal of the bulk puts");
      const auto arrived = std::count(bulk.local().begin(), bulk.local().end(), std::byte{7});
      seen.add();
      test::expect(static_cast<std::size_t>(arrived) <= most_sent, "at most ", most_sent,
                   " bytes in flight, not ", arrived);
      test::expect_ok(bulk.wait(first_signal, 1, soon(), peer), "a wait for the bulk puts");
      test::expect(bulk.local().back() == std::byte{7}, "the last byte");
    }
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

}  // namespace bulk_detail

using bulk_detail::check_bulk_in_latency_waits;
using bulk_detail::check_bulk_wakes;
using bulk_detail::check_class_mismatch;
using bulk_detail::check_large_bulk_puts;
using bulk_detail::check_signal_passes_bulk;
using bulk_detail::check_streaming_thread;

}  // namespace conformance
