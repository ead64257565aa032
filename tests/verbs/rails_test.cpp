// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/verbs.hpp>
#include <peerbus/transport/verbs/nearest_first.hpp>

#include "conformance/exchange_suite.hpp"
#include "conformance/window_suite.hpp"
#include "support/ranks.hpp"
#include "support/round.hpp"
#include "support/tally.hpp"
#include "verbs/support.hpp"

// Ranks that have several devices each.

namespace rails_test {

using peerbus::bootstrap;
using peerbus::errc;
using peerbus::rank_id;
using peerbus::signal_id;
using peerbus::verbs;
using peerbus::verbs_options;

const std::vector<std::string> two_devices{"rxe0", "rxe1"};

/// Pieces of a few words on small queues, so that short tests use both devices for everything.
class railed_verbs : public peerbus::basic_verbs<> {
 public:
  explicit railed_verbs(bootstrap& boot)
      : basic_verbs{boot, {.devices = two_devices, .stripe_bytes = 48, .queue_depth = 5}} {}
};
/// Two queue pairs on each device.
class wide_verbs : public peerbus::basic_verbs<> {
 public:
  explicit wide_verbs(bootstrap& boot)
      : basic_verbs{boot, {.devices = two_devices, .queue_pairs_per_peer = 2, .stripe_bytes = 96}} {
  }
};
using railed = test::processes_over<railed_verbs>;
using wide = test::processes_over<wide_verbs>;

/// The devices of a rank of two, which are joined with those of the other by a wire each.
verbs_options wired(const bootstrap& boot, verbs_options options = {}) {
  options.devices = boot.rank() == rank_id{0} ? std::vector<std::string>{"rxe0", "rxe2"}
                                              : std::vector<std::string>{"rxe1", "rxe3"};
  return options;
}

std::uint64_t bytes_on_wire(const std::string& name) {
  std::uint64_t bytes = 0;
  std::ifstream{"/sys/class/net/" + name + "/statistics/tx_bytes"} >> bytes;
  return bytes;
}

void expect_even(double first, double second, std::string_view what) {
  test::expect(first > 0.4 * (first + second) && second > 0.4 * (first + second), what, ": ", first,
               " and ", second, " bytes, expected 40 to 60 % each");
}

#define NEED_DEVICES(count)                                                           \
  if (!verbs_test::have_devices(count)) {                                             \
    MESSAGE("not tested: several devices in one rank (it needs those of the guest)"); \
    return;                                                                           \
  }

TEST_CASE("the semantics of windows, by two devices") {
  NEED_DEVICES(2);
  const std::string before = verbs_test::resources();
  for (const std::size_t n : {1U, 3U}) conformance::check_all_to_all<railed>(n);
  conformance::check_stream<railed>(3);
  conformance::check_get<railed>(2);
  conformance::check_signals<railed>(2);
  conformance::check_fetch_add<railed>(2);
  conformance::check_barrier<railed>(3, 20);
  conformance::check_short_waits<railed>(2);
  conformance::check_stream<wide>(2);
  CHECK(verbs_test::resources() == before);
}

TEST_CASE("dispatch and combine, by two devices") {
  NEED_DEVICES(2);
  using any_railed = test::any_over<peerbus::any_transport, railed>;
  using any_wide = test::any_over<peerbus::any_transport, wide>;
  using peerbus::codec::int8_per_token;
  conformance::check_exchange<any_railed, int8_per_token>({9, 256, 3, 8, oracle::routes::zipf}, 3,
                                                          2);
  conformance::check_exchange<any_wide, int8_per_token>({9, 1024, 3, 12, oracle::routes::zipf}, 3,
                                                        2);
}

TEST_CASE("the nearest devices come first, and those of which nobody knows last") {
  using peerbus::detail::rdma::nearest_first;
  using order = std::vector<std::size_t>;
  CHECK(nearest_first({0, 1, 1, -1}, 1) == order{1, 2, 0, 3});
  CHECK(nearest_first({-1, 1, 0}, 0) == order{2, 1, 0});
  CHECK(nearest_first({-1, 1, 0}, -1) == order{0, 1, 2});
  CHECK(nearest_first({}, 0).empty());
}

TEST_CASE("both devices carry about half of the bytes") {
  NEED_DEVICES(4);
  const int worst_status = peerbus::run_local(2, [](bootstrap& boot) {
    peerbus::communicator comm{verbs{boot, wired(boot)}};
    constexpr std::size_t row = 7168;
    constexpr std::size_t rows = 256;
    auto win = comm.make_window(2 * row * rows, 1);
    const auto words = win.local<std::uint64_t>();
    const rank_id peer{1 - comm.rank().index()};
    for (std::size_t i = 0; i < words.size() / 2; ++i)
      words[words.size() / 2 + i] = (i + 1) * (comm.rank().index() + 3);
    comm.barrier();
    const bool first = comm.rank() == rank_id{0};
    const std::vector<std::string> wires{first ? "v0" : "v1", first ? "v2" : "v3"};
    const std::vector<std::uint64_t> before{bytes_on_wire(wires[0]), bytes_on_wire(wires[1])};
    const std::span<const std::byte> source = win.local().subspan(row * rows);
    for (std::uint64_t round = 1; round <= 2; ++round) {
      if (round % 2 == 0)  // A transfer, and then rows.
        test::expect_ok(win.put(peer, 0, source), "put");
      else
        for (std::size_t i = 0; i < rows; ++i)
          test::expect_ok(win.put(peer, i * row, source.subspan(i * row, row)), "put");
      test::expect_ok(win.signal(peer, signal_id{0}, round), "signal");
      win.await(signal_id{0}, round, peerbus::deadline::after(std::chrono::seconds{60}), peer);
      bool is_right = true;
      for (std::size_t i = 0; i < words.size() / 2; ++i)
        is_right = is_right && words[i] == (i + 1) * (peer.index() + 3);
      test::expect(is_right, "all words of round ", round);
      comm.barrier();
      std::ranges::fill(words.first(words.size() / 2), 0);
      comm.barrier();
    }
    const std::vector<std::uint64_t> carried = comm.bus().bytes_by_device();
    test::expect_equal(carried.size(), std::size_t{2}, "devices");
    test::expect(carried[0] + carried[1] >= 2 * row * rows, "all bytes are counted");
    expect_even(static_cast<double>(carried[0]), static_cast<double>(carried[1]), "puts");
    expect_even(static_cast<double>(bytes_on_wire(wires[0]) - before[0]),
                static_cast<double>(bytes_on_wire(wires[1]) - before[1]), "wires");
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a signal waits for puts on a device that lags behind") {
  NEED_DEVICES(4);
  const test::tally told;
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    const auto soon = [] { return peerbus::deadline::after(std::chrono::seconds{60}); };
    // Packets are sent again after a second, for 8 s at least.
    peerbus::communicator comm{verbs{boot, wired(boot, {.ack_timeout = 18})}};
    constexpr std::size_t half = std::size_t{64} << 10U;  // One for each device.
    auto win = comm.make_window(4 * half, 1);
    const auto local = win.local();
    std::ranges::fill(local.subspan(2 * half), std::byte{7});
    comm.barrier();
    const bool is_receiver = comm.rank() == rank_id{1};
    const auto let_in = [](const std::string& yes) {
      verbs_test::shell(
          "sysctl -q -w net.ipv4.conf.all.accept_local=0 net.ipv4.conf.v3.accept_local=" + yes);
    };
    if (is_receiver) let_in("0");
    static_cast<void>(boot.allgather({}, soon(), "the second wire is closed"));
    if (!is_receiver)
      test::expect_ok(win.put_signal(rank_id{1}, 0, local.subspan(2 * half), signal_id{0}, 1),
                      "put_signal");
    static_cast<void>(boot.allgather({}, soon(), "sent"));
    if (is_receiver) {
      const errc code =
          win.wait(signal_id{0}, 1, peerbus::deadline::after(std::chrono::milliseconds{300}));
      test::expect_code(code, errc::timed_out, "a signal whose puts are not there");
      test::expect(local[2 * half - 1] == std::byte{0}, "nothing came by the second device");
      let_in("1");
      win.await(signal_id{0}, 1, soon(), rank_id{0});
      test::expect(
          std::ranges::count(local.first(2 * half), std::byte{7}) == std::ptrdiff_t{2 * half},
          "all bytes");
    }
    told.add();
    comm.barrier();
  });
  CHECK(worst_status == 0);
  CHECK(told.count() == 2);
  verbs_test::shell("sysctl -q -w net.ipv4.conf.v3.accept_local=1");
}

TEST_CASE("a device whose link goes down is named, on both ends") {
  NEED_DEVICES(4);
  const test::tally told;
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    const bool first = boot.rank() == rank_id{0};
    {
      const verbs_options quick{.stall_timeout = std::chrono::seconds{1}, .ack_timeout = 10};
      peerbus::communicator comm{verbs{boot, wired(boot, quick)},
                                 {.timeout = std::chrono::seconds{10}}};
      auto win = comm.make_window(std::size_t{1} << 20U, 1);
      comm.barrier();
      if (first) verbs_test::shell("ip link set v2 down");
      std::string text;
      const rank_id peer{1 - comm.rank().index()};
      errc code = errc::ok;
      for (std::uint64_t n = 1; code == errc::ok; ++n) {
        code = win.put_signal(peer, 0, win.local().subspan(1U << 19U), signal_id{0}, n);
        if (code == errc::ok) code = win.flush(peer);
      }
      text = comm.bus().describe_trouble();
      const std::string device = first ? "rxe2" : "rxe3";
      const std::string other = first ? "rxe0" : "rxe1";
      test::expect(code == errc::unreachable || code == errc::timed_out, "an end, not '",
                   to_string(code), "'");
      for (const std::string& part :
           {"over device " + device, "this rank's device " + device + " is not active"})
        test::expect(text.find(part) != std::string::npos, "'", part, "' in '", text, "'");
      test::expect(text.find(other) == std::string::npos, "no ", other, " in '", text, "'");
      told.add();
    }
    static_cast<void>(
        boot.allgather({}, peerbus::deadline::after(std::chrono::seconds{60}), "down"));
    if (first) verbs_test::shell("ip link set v2 up");
    if (first) verbs_test::have_devices(4);  // Waits until all are active.
    static_cast<void>(boot.allgather({}, peerbus::deadline::after(std::chrono::seconds{60}), "up"));
    peerbus::communicator again{verbs{boot, wired(boot)}};
    test::do_a_round(again);
    again.barrier();
  });
  CHECK(worst_status == 0);
  CHECK(told.count() == 2);
}

TEST_CASE("lists of devices that are impossible are refused by name on all ranks") {
  NEED_DEVICES(2);
  const std::string before = verbs_test::resources();
  const int worst_status = peerbus::run_local(3, [](bootstrap& boot) {
    const bool odd = boot.rank() == rank_id{2};
    const auto refused = [&](errc code, const std::string& text, verbs_options options) {
      if (!odd) options = {.devices = two_devices};
      test::expect_error(code, {text}, [&] { verbs{boot, options}; });
    };
    refused(errc::invalid_argument, "device 'rxe1' is named twice", {.devices = {"rxe1", "rxe1"}});
    refused(errc::invalid_argument, "expected device 'nonesuch0'",
            {.devices = {"rxe0", "nonesuch0"}});
    refused(errc::invalid_argument, "devices, their number is 1, expected 2 to 4",
            {.devices = {"rxe0"}});
    refused(errc::invalid_argument, "device is 'rxe0' and devices are given",
            {.device = "rxe0", .devices = two_devices});
    refused(errc::invalid_argument, "queue_pairs_per_peer is 5, expected 1 to 4",
            {.devices = two_devices, .queue_pairs_per_peer = 5});
    refused(errc::mismatch, "devices per rank is 2 on rank 0 but 1 on rank 2", {.device = "rxe0"});
    peerbus::communicator comm{verbs{boot, {.devices = two_devices}}};
    test::do_a_round(comm);
    comm.barrier();
  });
  CHECK(worst_status == 0);
  CHECK(verbs_test::resources() == before);
}

}  // namespace rails_test
