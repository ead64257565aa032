// SPDX-License-Identifier: MIT
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
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
#include <peerbus/transport/fabric.hpp>
#include <peerbus/transport/fabric/backlog.hpp>
#include <peerbus/transport/refinements.hpp>

#include "fabric/support.hpp"
#include "support/ranks.hpp"
#include "support/tally.hpp"

// Ranks that send without pause to a rank that is slower, that computes, or that does the same.

namespace flood_test {

namespace {

using peerbus::any_transport;
using peerbus::bootstrap;
using peerbus::deadline;
using peerbus::errc;
using peerbus::fabric;
using peerbus::rank_id;
using peerbus::signal_id;
using peerbus::detail::ofi::backlog;
using std::chrono::milliseconds;
using std::chrono::seconds;

using communicator = peerbus::communicator<any_transport>;

/// A queue that is soon full, and a count of what was ever put into it.
class counted : public peerbus::basic_fabric<> {
 public:
  explicit counted(bootstrap& boot) : basic_fabric{boot, {.queue_depth = 2}} {}
  [[nodiscard]] std::uint32_t posted(rank_id peer) const noexcept {
    return net()->to(peer).requests().count().posted();
  }
};

constexpr seconds hang{20};

/// Whether this process takes 2 ms to receive what a rank sends in much less.
std::atomic<bool> is_slow{false};

}  // namespace

/// Replaces that of the C library, for libfabric.
extern "C" ssize_t recv(int socket, void* target, std::size_t bytes, int flags) {
  if (is_slow.load(std::memory_order_relaxed)) std::this_thread::sleep_for(milliseconds{2});
  return ::recvfrom(socket, target, bytes, flags, nullptr, nullptr);
}

TEST_CASE("a wait ends at its deadline while a faster peer puts without pause") {
  const test::tally sent;
  const test::tally ended;
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    communicator comm{any_transport{fabric{boot}}};
    // With the 40 bytes before each put, 72 puts are what tcp reads at once. It looks for more when
    // it has taken what it has read, unless that ends amid a message.
    auto win = comm.make_window(85, 1);
    comm.barrier();
    if (comm.rank() == rank_id{0}) {
      is_slow = true;
      const errc code = win.wait(signal_id{0}, 1, deadline::after(milliseconds{100}), rank_id{1});
      is_slow = false;
      const std::size_t count = sent.count();
      ended.add();
      test::expect_code(code, errc::timed_out, "a wait for a signal that nobody raises");
      // The peer may send as much as is taken until the deadline, which is no more than 3600 puts,
      // by the look during which it passes, and by one more. Without a limit, one look takes more
      // than a hundred thousand.
      test::expect(count <= 4 * backlog::most_bytes / backlog::write_weight, "fewer puts than ",
                   count);
    } else {
      const auto until = deadline::after(hang);
      while (ended.count() == 0 && !until.expired()) {
        test::expect_ok(win.put(rank_id{0}, 0, win.local()), "put");
        sent.add();
      }
      test::expect_equal(ended.count(), 1U, "waits that ended while the peer went on");
    }
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a rank can send no more than the backlog to a rank that takes nothing") {
  const auto check = [](const char* provider, std::size_t most, auto&& send) {
    const test::tally gave_up;
    const test::tally silent;
    const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
      communicator comm{
          any_transport{fabric{boot, {.provider = provider, .stall_timeout = milliseconds{200}}}}};
      auto win = comm.make_window(64, 1);
      comm.barrier();
      if (comm.rank() == rank_id{0}) {
        // Rank 1 may still take messages in its barrier.
        while (silent.count() == 0) std::this_thread::yield();
        std::size_t sent = 0;
        errc code = errc::ok;
        while (code == errc::ok && sent < 4 * most) {
          code = send(win, sent + 1);
          sent += code == errc::ok ? 1 : 0;
        }
        gave_up.add();
        test::expect_code(code, errc::timed_out, "a message too many");
        test::expect(sent > most / 16 && sent <= most, "no more than ", most, ", not ", sent);
      }
      if (comm.rank() == rank_id{1}) silent.add();
      while (gave_up.count() == 0) std::this_thread::yield();  // Rank 1 makes no call.
    });
    CHECK(worst_status == 0);
  };
  const auto signal = [](auto& win, std::uint64_t value) {
    return win.signal(rank_id{1}, signal_id{0}, value);
  };
  const auto put = [](auto& win, std::uint64_t) { return win.put(rank_id{1}, 0, win.local()); };
  for (const char* provider : {fabric_test::connections, fabric_test::datagrams})
    check(provider, backlog::most_bytes / backlog::notice_weight, signal);
  check(fabric_test::connections, backlog::most_bytes / backlog::write_weight, put);
  // A put that is to be confirmed keeps its place in the queue until the peer has taken it.
  check(fabric_test::datagrams, peerbus::fabric_options{}.queue_depth, put);
}

TEST_CASE("what waits for room is sent once") {
  constexpr std::uint32_t puts = 12;
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    peerbus::communicator<counted> comm{counted{boot}};
    auto win = comm.make_window(std::size_t{1} << 20U, 1);
    comm.barrier();
    if (comm.rank() == rank_id{0}) {
      const std::uint32_t before = comm.bus().posted(rank_id{1});
      for (std::uint32_t n = 0; n < puts; ++n)
        test::expect_ok(win.put(rank_id{1}, 0, win.local()), "put");
      test::expect_equal(comm.bus().posted(rank_id{1}) - before, puts, "requests");
      test::expect_ok(win.signal(rank_id{1}, signal_id{0}, 1), "signal");
    } else {
      std::this_thread::sleep_for(milliseconds{100});  // Computes. Then it takes slowly.
      while (win.wait(signal_id{0}, 1, deadline::after(milliseconds{0}), rank_id{0}) ==
             errc::timed_out)
        std::this_thread::sleep_for(milliseconds{4});
    }
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

TEST_CASE("ranks that flood each other all go on, and nothing is lost when they leave at once") {
  constexpr std::uint64_t rounds = 3000;  // More notices than the backlog.
  constexpr std::size_t pieces = 10000;   // More writes than the backlog.
  constexpr std::size_t bytes = 512;      // From each rank; the first go within a notice.
  const auto flood = [](communicator& comm) {
    const std::size_t ranks = comm.size();
    auto win = comm.make_window(2 * ranks * bytes, ranks);
    const std::size_t own = comm.rank().index();
    const auto outgoing = win.local().subspan((ranks + own) * bytes, bytes);
    comm.barrier();
    const std::vector<peerbus::put_piece> run(pieces, {own * bytes, outgoing.first(8)});
    for (std::size_t step = 1; step < ranks; ++step)
      test::expect_ok(win.put_run(rank_id{(own + step) % ranks}, run), "put_run");
    const signal_id raised{static_cast<std::uint32_t>(own)};
    for (std::uint64_t n = 1; n <= rounds; ++n) {
      const std::size_t length = n % 16 == 0 ? bytes : 8;
      if (n == rounds) std::fill(outgoing.begin(), outgoing.end(), std::byte{7});
      for (std::size_t step = 1; step < ranks; ++step)
        test::expect_ok(win.put_signal(rank_id{(own + step) % ranks}, own * bytes,
                                       outgoing.first(length), raised, n),
                        "put_signal");
    }
    const auto until = deadline::after(hang);
    for (std::size_t step = 1; step < ranks; ++step) {
      const std::size_t peer = (own + step) % ranks;
      const signal_id awaited{static_cast<std::uint32_t>(peer)};
      test::expect_ok(win.wait(awaited, rounds, until, rank_id{peer}), "wait");
      test::expect(win.local()[peer * bytes] == std::byte{7}, "the last bytes of ", peer);
    }
  };
  for (const std::size_t ranks : {2U, 3U}) CHECK(fabric_test::both::run(ranks, flood) == 0);
}

}  // namespace flood_test
