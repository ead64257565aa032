// SPDX-License-Identifier: MIT
// ctest: timeout=400
#include <infiniband/verbs.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/traffic_class.hpp>
#include <peerbus/transport/unified_bus.hpp>
#include <peerbus/transport/verbs.hpp>

#include "conformance/bulk_suite.hpp"
#include "conformance/window_suite.hpp"
#include "support/grouped.hpp"
#include "support/ranks.hpp"
#include "support/round.hpp"
#include "support/tally.hpp"
#include "support/with_bulk.hpp"
#include "verbs/support.hpp"

// Windows for bulk traffic: the semantics of windows, alone and beside windows for latency traffic;
// what does not wait for them; and what goes wrong.

namespace bulk_test {

namespace {

using peerbus::bootstrap;
using peerbus::deadline;
using peerbus::errc;
using peerbus::rank_id;
using peerbus::signal_id;
using peerbus::traffic_class;
using peerbus::verbs;
using peerbus::verbs_options;
using test::with_bulk;

constexpr signal_id first_signal{0};
constexpr std::size_t kib = std::size_t{1} << 10U;

deadline soon() { return deadline::after(std::chrono::seconds{60}); }
rank_id other_than(rank_id rank) { return rank_id{1 - rank.index()}; }

/// Slices, queues and limits so small that short tests need many, on three queue pairs.
class tiny : public peerbus::basic_verbs<> {
 public:
  explicit tiny(bootstrap& boot)
      : basic_verbs{boot,
                    {.queue_pairs_per_peer = 3,
                     .stripe_bytes = 48,
                     .queue_depth = 5,
                     .bulk_slice = 4096,
                     .bulk_in_flight = 4096}} {}
};
/// So little on its way that a large put takes many looks.
class narrow : public peerbus::basic_verbs<> {
 public:
  explicit narrow(bootstrap& boot)
      : basic_verbs{boot, {.bulk_slice = 16 * kib, .bulk_in_flight = 64 * kib}} {}
};
/// Bulk traffic on two devices.
class railed : public peerbus::basic_verbs<> {
 public:
  explicit railed(bootstrap& boot)
      : basic_verbs{boot,
                    {.devices = {"rxe0", "rxe1"},
                     .queue_depth = 5,
                     .bulk_slice = 4096,
                     .bulk_in_flight = 16384}} {}
};
using neighbours = test::grouped<peerbus::unified_bus, narrow, 2>;

template <class... Transports>
using over = test::any_over<peerbus::any_transport, test::processes_over<Transports>...>;
using all_kinds = over<with_bulk<verbs, 1>, with_bulk<tiny, 2>, with_bulk<railed, 1>>;
using mixed = over<with_bulk<tiny, 2>>;

#define NEED_DEVICES(count)                                                  \
  if (!verbs_test::have_devices(count)) {                                    \
    MESSAGE("not tested: bulk traffic (it needs the devices of the guest)"); \
    return;                                                                  \
  }

ibv_ah_attr route_of(const verbs& bus, rank_id peer, traffic_class traffic) {
  ibv_qp_attr state{};
  ibv_qp_init_attr made{};
  ibv_qp* const pair = bus.queue_pair(peer, 0, traffic);
  test::expect(pair != nullptr, "a queue pair for ", name_of(traffic), " traffic");
  test::expect_equal(ibv_query_qp(pair, &state, IBV_QP_AV, &made), 0, "ibv_query_qp");
  return state.ah_attr;
}

}  // namespace

TEST_CASE("bulk windows keep the semantics of windows") {
  NEED_DEVICES(2);
  const std::string before = verbs_test::resources();
  for (const std::size_t n : {1U, 3U}) {
    conformance::check_all_to_all<all_kinds>(n);
    conformance::check_stream<all_kinds>(n);
  }
  conformance::check_get<all_kinds>(2);
  conformance::check_signals<all_kinds>(2);
  conformance::check_many_windows<mixed>(2);
  conformance::check_fetch_add<mixed>(2);
  conformance::check_short_waits<mixed>(2);
  conformance::check_barrier<mixed>(3, 10);
  CHECK(verbs_test::resources() == before);
}

TEST_CASE("large puts of bulk windows beside signals of latency windows, each byte right") {
  NEED_DEVICES(2);
  conformance::check_large_bulk_puts<over<tiny, railed, neighbours>>(100 * kib + 776);
}

TEST_CASE("a thread that streams beside a thread that signals") {
  conformance::check_streaming_thread<over<narrow>>(100 * kib + 8);
}

TEST_CASE("a thread that streams beside a thread that dispatches") {
  const int worst_status = over<narrow>::run(2, [](auto& comm) {
    constexpr std::uint64_t rounds = 30;
    auto bulk =
        comm.make_window({.bytes = 256 * kib, .signals = 1, .traffic = traffic_class::bulk});
    const rank_id peer = other_than(comm.rank());
    std::thread streaming{[&]() noexcept {
      for (std::uint64_t round = 1; round <= rounds; ++round) {
        const auto source = bulk.local().last(128 * kib);
        std::fill(source.begin(), source.end(), static_cast<std::byte>(round));
        test::expect_ok(bulk.put_signal(peer, 0, source, first_signal, 2 * round - 1), "put");
        test::expect_ok(bulk.wait(first_signal, 2 * round - 1, soon(), peer), "wait");
        const auto arrived = bulk.local().first(128 * kib);
        test::expect(std::all_of(arrived.begin(), arrived.end(),
                                 [&](std::byte b) { return b == static_cast<std::byte>(round); }),
                     "the bytes of round ", round);
        test::expect_ok(bulk.signal(peer, first_signal, 2 * round), "signal");
        test::expect_ok(bulk.wait(first_signal, 2 * round, soon(), peer), "wait to go on");
      }
    }};
    for (int i = 0; i < 10; ++i) test::do_a_round(comm);
    streaming.join();
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a rank that waits for latency traffic moves bulk traffic too") {
  conformance::check_bulk_in_latency_waits<over<narrow>>(1024 * kib);
}

TEST_CASE("a bulk signal wakes a rank that sleeps on the descriptor of its transport") {
  conformance::check_bulk_wakes<verbs>();
}

TEST_CASE("ranks that disagree on the class of a window all learn who wants which") {
  conformance::check_class_mismatch<verbs>();
}

TEST_CASE("a signal passes the bulk puts before it, most of which wait at their sender") {
  conformance::check_signal_passes_bulk([](bootstrap& boot) { return narrow{boot}; }, 1024 * kib,
                                        64 * kib);
}

TEST_CASE("the settings of each class reach its queue pairs") {
  const int worst_status = peerbus::run_local(2, [](bootstrap& boot) {
    const auto expect_settings = [&](const verbs_options& options, int latency, int bulk) {
      peerbus::communicator comm{verbs{boot, options}};
      const rank_id peer = other_than(comm.rank());
      test::expect(comm.bus().queue_pair(peer, 0, traffic_class::bulk) == nullptr,
                   "no queue pair for bulk traffic before there is a bulk window");
      const auto win = comm.make_window({.bytes = 64, .traffic = traffic_class::bulk});
      for (const traffic_class traffic : {traffic_class::latency, traffic_class::bulk}) {
        const bool is_bulk = traffic == traffic_class::bulk;
        const ibv_ah_attr route = route_of(comm.bus(), peer, traffic);
        test::expect_equal(int{route.grh.traffic_class}, is_bulk ? bulk : latency, name_of(traffic),
                           " traffic class");
        // soft-RoCE has no service levels, and says 0.
        const int level = is_bulk && options.bulk_service_level >= 0 ? options.bulk_service_level
                                                                     : options.service_level;
        test::expect(int{route.sl} == level || int{route.sl} == 0, name_of(traffic),
                     " service level is ", int{route.sl}, ", expected ", level);
      }
      comm.barrier();
    };
    expect_settings({}, 0, 0);
    expect_settings({.service_level = 3, .traffic_class = 104}, 104, 104);
    expect_settings({.service_level = 3,
                     .traffic_class = 104,
                     .bulk_service_level = 1,
                     .bulk_traffic_class = 32},
                    104, 32);
    expect_settings({.traffic_class = 104, .bulk_service_level = 0, .bulk_traffic_class = 0}, 104,
                    0);
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a peer that does not look at bulk signals is given up for that class alone") {
  const test::tally gave_up;
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    peerbus::communicator comm{
        verbs{boot, {.queue_depth = 8, .stall_timeout = std::chrono::seconds{2}}}};
    auto bulk = comm.make_window({.bytes = 64, .signals = 1, .traffic = traffic_class::bulk});
    auto quick = comm.make_window(64, 1);
    comm.barrier();
    const rank_id peer = other_than(comm.rank());
    if (comm.rank() == rank_id{0}) {
      errc code = errc::ok;
      for (std::uint64_t n = 1; code == errc::ok && n < 10'000; ++n)
        code = bulk.signal(peer, first_signal, n);
      test::expect_code(code, errc::timed_out, "a signal too many");
      test::expect_code(bulk.put(peer, 0, bulk.local()), errc::unreachable, "what follows");
      const std::string failures = comm.bus().describe_trouble();
      test::expect(failures.find("no bulk connection to rank 1") != std::string::npos,
                   "its name in '", failures, "'");
      test::expect_ok(quick.signal(peer, first_signal, 1), "a signal of the other class");
      gave_up.add();
      test::expect_ok(quick.wait(first_signal, 1, soon(), peer), "the answer");
      return;
    }
    while (gave_up.count() == 0) std::this_thread::yield();  // Rank 1 makes no call.
    test::expect_ok(quick.wait(first_signal, 1, soon(), peer), "the signal");
    test::expect_ok(quick.signal(peer, first_signal, 1), "the answer");
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a bulk key that is refused breaks the bulk connection alone") {
  const test::tally told;
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    {
      peerbus::communicator comm{narrow{boot}};
      auto bulk = comm.make_window({.bytes = 128 * kib, .traffic = traffic_class::bulk});
      auto quick = comm.make_window(64, 1);
      comm.barrier();
      const rank_id peer = other_than(comm.rank());
      if (comm.rank() == rank_id{0}) {
        bulk.memory().part().parts[1].key[0] ^= 0xffU;
        test::expect_ok(bulk.put(peer, 0, bulk.local()), "a put that is noted");
        test::expect_code(bulk.flush(peer), errc::unreachable, "flush");
        const std::string failures = comm.bus().describe_trouble();
        test::expect(failures.find("no bulk connection to rank 1") != std::string::npos &&
                         failures.find("refused the remote key") != std::string::npos,
                     "its reason in '", failures, "'");
      }
      test::expect_ok(quick.signal(peer, first_signal, 1), "a signal of the other class");
      test::expect_ok(quick.wait(first_signal, 1, soon(), peer), "a wait");
      told.add();
    }
    peerbus::communicator again{verbs{boot}};
    test::do_a_round(again);
    again.barrier();
  });
  CHECK(worst_status == 0);
  CHECK(told.count() == 2);
}

}  // namespace bulk_test
