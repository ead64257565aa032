// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/wait_readable.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/fabric.hpp>
#include <peerbus/transport/fabric/backlog.hpp>
#include <peerbus/transport/traffic_class.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "conformance/bulk_suite.hpp"
#include "conformance/window_suite.hpp"
#include "fabric/support.hpp"
#include "support/die_after.hpp"
#include "support/grouped.hpp"
#include "support/ranks.hpp"
#include "support/tally.hpp"
#include "support/with_bulk.hpp"

// Windows for bulk traffic: the semantics of windows, alone and beside windows for latency traffic;
// what does not wait for them; and what goes wrong.

namespace bulk_test {

namespace {

using peerbus::any_transport;
using peerbus::bootstrap;
using peerbus::deadline;
using peerbus::errc;
using peerbus::fabric;
using peerbus::fabric_options;
using peerbus::rank_id;
using peerbus::signal_id;
using peerbus::traffic_class;
using peerbus::window_shape;
using std::chrono::milliseconds;
using std::chrono::seconds;

using communicator = peerbus::communicator<any_transport>;

constexpr seconds hang{60};
constexpr signal_id first_signal{0};
constexpr std::size_t mib = std::size_t{1} << 20U;

deadline soon() { return deadline::after(hang); }
rank_id other_than(rank_id rank) { return rank_id{1 - rank.index()}; }

/// Slices, queues and limits so small that short tests need many.
template <bool Connects>
class tiny : public peerbus::basic_fabric<> {
 public:
  explicit tiny(bootstrap& boot)
      : basic_fabric{boot,
                     {.provider = Connects ? fabric_test::connections : fabric_test::datagrams,
                      .queue_depth = 5,
                      .bulk_slice = 4096,
                      .bulk_in_flight = 4096}} {}
};

/// So little on its way that a large put takes many looks.
class narrow : public peerbus::basic_fabric<> {
 public:
  explicit narrow(bootstrap& boot) : basic_fabric{boot, {.bulk_in_flight = mib / 4}} {}
};

using test::with_bulk;
using neighbours = test::grouped<peerbus::unified_bus, fabric, 2>;

template <class... Transports>
using over = test::any_over<any_transport, test::processes_over<Transports>...>;
using all_kinds = over<with_bulk<fabric, 1>, with_bulk<tiny<true>, 1>, with_bulk<tiny<false>, 1>,
                       with_bulk<fabric, 2>, with_bulk<neighbours, 1>>;
using plain = over<with_bulk<fabric, 1>>;
using mixed = over<with_bulk<fabric, 2>, with_bulk<tiny<false>, 2>>;

constexpr std::size_t sizes[] = {1, 2, 3};

communicator over_fabric(bootstrap& boot, const fabric_options& chosen = {}) {
  return communicator{any_transport{fabric{boot, chosen}}};
}

}  // namespace

TEST_CASE("bulk windows keep the semantics of windows") {
  for (const std::size_t n : sizes) {
    conformance::check_fresh_windows<plain>(n);
    conformance::check_all_to_all<all_kinds>(n);
    conformance::check_get<all_kinds>(n);
    conformance::check_ranges<plain>(n);
    conformance::check_foreign_memory<plain>(n);
    conformance::check_signals<all_kinds>(n);
    conformance::check_short_waits<plain>(n);
    conformance::check_stream<all_kinds>(n);
    conformance::check_barrier<plain>(n, 20);
  }
}

TEST_CASE("windows of two classes are independent") {
  for (const std::size_t n : sizes) conformance::check_many_windows<mixed>(n);
}

TEST_CASE("a transport without classes takes bulk windows as any other") {
  using shared_memory = over<with_bulk<peerbus::unified_bus, 1>>;
  conformance::check_all_to_all<shared_memory>(3);
  const auto body = [](communicator& comm) {
    test::expect(!comm.bus().capabilities().traffic_classes, "no classes");
    const auto win = comm.make_window({.bytes = 8, .traffic = traffic_class::bulk});
    test::expect(win.shape().traffic == traffic_class::bulk, "the class of the window");
  };
  CHECK(shared_memory::run(2, body) == 0);
}

TEST_CASE("large puts of bulk windows beside signals of latency windows, each byte right") {
  conformance::check_large_bulk_puts<over<fabric, tiny<false>, neighbours>>();
}

TEST_CASE("a thread that streams beside a thread that signals") {
  conformance::check_streaming_thread<over<fabric, tiny<false>>>();
}

TEST_CASE("a rank that waits for latency traffic moves bulk traffic too") {
  conformance::check_bulk_in_latency_waits<over<narrow>>();
}

TEST_CASE("a bulk signal wakes a rank that sleeps on the descriptor of its transport") {
  conformance::check_bulk_wakes<fabric>();
}

TEST_CASE("ranks that disagree on the class of a window all learn who wants which") {
  conformance::check_class_mismatch<fabric>();
}

TEST_CASE("a signal passes the bulk puts before it, most of which wait at their sender") {
  conformance::check_signal_passes_bulk([](bootstrap& boot) { return any_transport{fabric{boot}}; },
                                        32 * mib, 2 * fabric_options{}.bulk_in_flight);
}

TEST_CASE("impossible limits of bulk traffic are refused") {
  const int worst_status = peerbus::run_local(1, [](bootstrap& boot) {
    test::expect_error(errc::invalid_argument, {"bulk_slice is 4095"},
                       [&] { static_cast<void>(fabric{boot, {.bulk_slice = 4095}}); });
    test::expect_error(errc::invalid_argument, {"bulk_in_flight is 4096", "8192"}, [&] {
      static_cast<void>(fabric{boot, {.bulk_slice = 8192, .bulk_in_flight = 4096}});
    });
  });
  CHECK(worst_status == 0);
}

TEST_CASE("bulk puts to a rank that is killed") {
  const test::tally met;
  const test::tally told;
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    communicator comm = over_fabric(boot);
    auto bulk = comm.make_window({.bytes = 32 * mib, .signals = 1, .traffic = traffic_class::bulk});
    comm.barrier();
    if (comm.rank() == rank_id{1}) test::die_after(comm, met, 1);
    met.add();
    const auto until = deadline::after(seconds{30});
    errc code = errc::ok;
    while (code == errc::ok && !until.expired()) {
      code = bulk.put(rank_id{1}, 0, bulk.local());
      if (code == errc::ok) code = bulk.flush(rank_id{1});
    }
    test::expect_code(code, errc::peer_dead, "a put to a dead rank");
    test::expect_code(bulk.wait(first_signal, 1, until, rank_id{1}), errc::peer_dead, "a wait");
    told.add();
  });
  CHECK(worst_status == 128 + SIGKILL);
  CHECK(told.count() == 1);
}

TEST_CASE("bulk puts to a peer that has closed its end") {
  const test::tally sent;
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    {
      communicator comm = over_fabric(boot);
      auto bulk =
          comm.make_window({.bytes = 32 * mib, .signals = 1, .traffic = traffic_class::bulk});
      comm.barrier();
      if (comm.rank() == rank_id{0}) {
        test::expect_ok(bulk.put(rank_id{1}, 0, bulk.local()), "a bulk put");
        sent.add();
        const auto until = deadline::after(seconds{30});
        errc code = bulk.flush(rank_id{1});
        while (code == errc::ok && !until.expired())
          code = bulk.signal(rank_id{1}, first_signal, 1);
        test::expect_code(code, errc::unreachable, "what follows");
        const std::string failures = comm.bus().describe_trouble();
        test::expect(
            failures.find("rank 1 has closed its end for bulk traffic") != std::string::npos ||
                failures.find("no bulk connection to rank 1") != std::string::npos,
            "its name in '", failures, "'");
      }
      while (sent.count() == 0) std::this_thread::yield();
    }
    communicator again = over_fabric(boot);
    auto bulk = again.make_window({.bytes = 64, .signals = 1, .traffic = traffic_class::bulk});
    test::expect_ok(bulk.signal(other_than(again.rank()), first_signal, 1), "a new signal");
    test::expect_ok(bulk.wait(first_signal, 1, soon()), "a new wait");
    again.barrier();
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a rank that takes no bulk traffic is given up for that class alone") {
  const auto check = [](std::size_t most, std::size_t least, auto&& send) {
    const test::tally silent;
    const test::tally gave_up;
    const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
      constexpr std::uint32_t depth = 64;
      communicator comm =
          over_fabric(boot, {.queue_depth = depth, .stall_timeout = milliseconds{200}});
      auto bulk = comm.make_window({.bytes = mib, .signals = 1, .traffic = traffic_class::bulk});
      auto quick = comm.make_window(64, 1);
      comm.barrier();
      if (comm.rank() == rank_id{0}) {
        while (silent.count() == 0) std::this_thread::yield();
        std::size_t sent = 0;
        errc code = errc::ok;
        while (code == errc::ok && sent < 4 * (most + depth)) {
          code = send(bulk, sent + 1);
          sent += code == errc::ok ? 1 : 0;
        }
        test::expect_code(code, errc::timed_out, "a message too many");
        test::expect(sent >= least + depth && sent <= most + depth, "about ", most, ", not ", sent);
        const std::string failures = comm.bus().describe_trouble();
        test::expect(failures.find("no bulk connection to rank 1") != std::string::npos,
                     "its name in '", failures, "'");
        test::expect_ok(quick.signal(rank_id{1}, first_signal, 1), "a signal of the other class");
        gave_up.add();
        return;
      }
      silent.add();
      while (gave_up.count() == 0) std::this_thread::yield();  // Rank 1 makes no call.
      test::expect_ok(quick.wait(first_signal, 1, soon(), rank_id{0}), "the other class");
    });
    CHECK(worst_status == 0);
  };
  using peerbus::detail::ofi::backlog;
  const std::size_t limit = fabric_options{}.bulk_in_flight;
  check(limit / backlog::notice_weight, limit / backlog::notice_weight / 2,
        [](auto& win, std::uint64_t n) { return win.signal(rank_id{1}, first_signal, n); });
  check(limit / backlog::write_weight, 16,
        [](auto& win, std::uint64_t) { return win.put(rank_id{1}, 0, win.local().first(64)); });
  check(limit / mib, 1,
        [](auto& win, std::uint64_t) { return win.put(rank_id{1}, 0, win.local()); });
}

}  // namespace bulk_test
