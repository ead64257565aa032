// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <infiniband/verbs.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/verbs.hpp>

#include "support/process.hpp"
#include "support/ranks.hpp"
#include "support/round.hpp"
#include "support/tally.hpp"
#include "verbs/support.hpp"

// What breaks while ranks talk: each rank gets an error that names the peer and the cause, well
// before its deadline of a minute, and the same processes can start again.

namespace {

using peerbus::bootstrap;
using peerbus::deadline;
using peerbus::errc;
using peerbus::rank_id;
using peerbus::signal_id;
using peerbus::verbs;
using std::chrono::seconds;
using std::chrono::steady_clock;

using communicator = peerbus::communicator<verbs>;
using window = peerbus::window<verbs>;

constexpr peerbus::communicator_options patient{.timeout = std::chrono::minutes{1}};
constexpr seconds hang{30};

/// Calls `f`, which must throw an `error` with one of `codes` whose text has all of `fragments`,
/// before any deadline passes.
template <class F>
void expect_break(std::vector<errc> codes, std::vector<std::string> fragments, F&& f) {
  const auto start = steady_clock::now();
  try {
    f();
  } catch (const peerbus::error& caught) {
    const std::string_view text = caught.what();
    bool known = false;
    for (const errc code : codes) known = known || caught.code() == code;
    if (!known) test::fail("threw '", text, "', expected another code");
    for (const std::string& part : fragments)
      if (text.find(part) == std::string_view::npos)
        test::fail("threw '", text, "', expected it to say '", part, "'");
    test::expect(steady_clock::now() - start < hang, "an end well before the deadline");
    return;
  }
  test::fail("threw nothing");
}

/// Two ranks: `harm` spoils what rank 0 has of rank 1, whose next put must tell. Both start again
/// on the same bootstrap, and it works.
void check_spoiled(const std::function<void(communicator&, window&)>& harm,
                   const std::string& cause) {
  const test::tally told;
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    {
      communicator comm{verbs{boot}, patient};
      window win = comm.make_window(256, 1);
      comm.barrier();
      if (comm.rank() == rank_id{0}) {
        harm(comm, win);
        expect_break({errc::unreachable}, {"no connection to rank 1", cause}, [&] {
          const auto source = win.local().subspan(128, 64);
          peerbus::errc code = win.put_signal(rank_id{1}, 0, source, signal_id{0}, 1);
          if (code == errc::ok) code = win.flush(rank_id{1});
          throw peerbus::error{code, describe_absence(comm.bus())};
        });
        told.add();
      } else {
        // The device of rank 1 may break its end too; if not, its deadline ends this.
        const errc code =
            win.wait(signal_id{0}, 1, deadline::after(std::chrono::seconds{2}), rank_id{0});
        test::expect(code == errc::unreachable || code == errc::timed_out, "no signal, not '",
                     to_string(code), "'");
        for (const std::byte byte : win.local().first(64))
          test::expect(byte == std::byte{0}, "memory that was not written");
        told.add();
      }
    }
    communicator again{verbs{boot}, patient};
    test::do_a_round(again);
    again.barrier();
  });
  CHECK(worst_status == 0);
  CHECK(told.count() == 2);
}

verbs on_its_own_device(bootstrap& boot) {
  return verbs{boot, {.device = "rxe" + std::to_string(boot.rank().index() % 2)}};
}

}  // namespace

TEST_CASE("a rank killed in the middle of a dispatch") {
  for (const std::size_t ranks : {2U, 3U, 4U}) {
    CAPTURE(ranks);
    const std::string before = verbs_test::resources();
    const std::size_t victim = ranks - 1;
    const test::tally told;
    const int worst_status = peerbus::run_local(ranks, [&](bootstrap& boot) {
      communicator comm{verbs{boot}, patient};
      test::do_a_round(comm);
      if (comm.rank() == rank_id{victim}) {
        // Its counts are out, its rows never come.
        peerbus::moe::exchange moe{comm,
                                   {.experts = 4, .hidden = 64, .top_k = 1, .max_tokens = 4},
                                   peerbus::codec::int8_per_token{}};
        static_cast<void>(moe.dispatch_send({}, {std::span<const std::int32_t>{}, {}}));
        ::raise(SIGKILL);
      }
      expect_break({errc::peer_dead}, {"rank " + std::to_string(victim) + " died"}, [&] {
        peerbus::moe::exchange moe{comm,
                                   {.experts = 4, .hidden = 64, .top_k = 1, .max_tokens = 4},
                                   peerbus::codec::int8_per_token{}};
        static_cast<void>(moe.dispatch({}, {std::span<const std::int32_t>{}, {}}));
        static_cast<void>(moe.dispatch({}, {std::span<const std::int32_t>{}, {}}));
      });
      told.add();
    });
    CHECK(worst_status == 128 + SIGKILL);
    CHECK(told.count() == ranks - 1);
    CHECK(verbs_test::resources() == before);
    const int next = peerbus::run_local(ranks, [](bootstrap& boot) {
      communicator comm{verbs{boot}, patient};
      test::do_a_round(comm);
    });
    CHECK(next == 0);
  }
}

TEST_CASE("a remote key that is wrong") {
  check_spoiled([](communicator&, window& win) { win.memory().part().parts[1].key[0] ^= 0xffU; },
                "refused the remote key");
}

TEST_CASE("a remote address outside the window") {
  check_spoiled(
      [](communicator&, window& win) { win.memory().part().parts[1].address += 1U << 20U; },
      "refused the remote key");
}

TEST_CASE("a queue pair in the error state") {
  check_spoiled(
      [](communicator& comm, window&) {
        ibv_qp_attr state{};
        state.qp_state = IBV_QPS_ERR;
        test::expect_equal(ibv_modify_qp(comm.bus().queue_pair(rank_id{1}), &state, IBV_QP_STATE),
                           0, "the change of state");
      },
      "queue pair is in the error state");
}

TEST_CASE("a link that goes down, and comes up again") {
  if (!verbs_test::have_devices(2)) {
    MESSAGE("not tested: a link that goes down (it needs the guest's two devices)");
    return;
  }
  const test::tally told;
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    const bool first = boot.rank() == rank_id{0};
    {
      // Not all devices find out themselves: soft-RoCE does not if its own end has no carrier.
      communicator comm{on_its_own_device(boot), {.timeout = seconds{10}}};
      test::do_a_round(comm);
      comm.barrier();
      if (first) verbs_test::shell("ip link set v0 down");
      expect_break({errc::unreachable, errc::timed_out}, {first ? "rank 1" : "rank 0", "link"},
                   [&] {
                     for (;;) test::do_a_round(comm);
                   });
      told.add();
    }
    if (first)
      verbs_test::shell(
          "ip link set v0 up; for i in $(seq 100); do rdma link | grep -c 'rxe[01].*state ACTIVE' "
          "| grep -q "
          "2 "
          "&& exit 0; sleep 0.1; done; rdma link; exit 1");
    // Rank 1 waits here for rank 0.
    static_cast<void>(boot.allgather({}, deadline::after(seconds{60}), "link is up"));
    communicator again{on_its_own_device(boot), patient};
    test::do_a_round(again);
    again.barrier();
  });
  CHECK(worst_status == 0);
  CHECK(told.count() == 2);
}

TEST_CASE("a peer that does not look at its signals for long") {
  // The queue of rank 0 fills; it gives up after its stall timeout and says for whom it waited.
  const test::tally gave_up;
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    communicator comm{verbs{boot, {.queue_depth = 8, .stall_timeout = std::chrono::seconds{2}}},
                      patient};
    window win = comm.make_window(64, 1);
    comm.barrier();
    if (comm.rank() == rank_id{0}) {
      errc code = errc::ok;
      for (std::uint64_t n = 1; code == errc::ok && n < 10'000; ++n)
        code = win.signal(rank_id{1}, signal_id{0}, n);
      test::expect_code(code, errc::timed_out, "a signal too many");
      const std::string failures = comm.bus().describe_trouble();
      test::expect(failures.find("no connection to rank 1") != std::string::npos, "its name in '",
                   failures, "'");
      gave_up.add();
    }
    // Rank 1 looks at nothing until rank 0 is through: in a collective it would.
    while (gave_up.count() == 0) std::this_thread::sleep_for(std::chrono::milliseconds{5});
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a child that a rank forks leaves the connections of the rank alone") {
  const int worst_status = peerbus::run_local(2, [](bootstrap& boot) {
    communicator comm{verbs{boot}, patient};
    test::go_on_beside_a_child(comm);
  });
  CHECK(worst_status == 0);
}

TEST_CASE("libibverbs gets no number of a standard stream in ranks without them") {
  const int worst_status = peerbus::run_local(2, [](bootstrap& boot) {
    test::close_standard_streams();
    communicator comm{verbs{boot}, patient};
    test::do_a_round(comm);
    test::expect_no_standard_streams();
    comm.barrier();
  });
  CHECK(worst_status == 0);
}
