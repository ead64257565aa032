// SPDX-License-Identifier: MIT
// ctest: waits timeout=300
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/collective/all_reduce.hpp>
#include <peerbus/collective/channels.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/send_recv.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/ranks.hpp"
#include "support/round.hpp"

// An error names a rank that is missing with what it was last seen doing, and how long ago.

namespace last_seen_test {
namespace {

using namespace std::chrono_literals;
using peerbus::bf16;
using peerbus::deadline;
using peerbus::errc;
using peerbus::group_operation;
using peerbus::rank_id;
using peerbus::signal_id;
using peerbus::codec::int8_per_token;
using communicator = peerbus::communicator<peerbus::any_transport>;

constexpr rank_id absent{1};
constexpr std::uint64_t released = 7;  ///< the value for which the absent rank waits

/// What both ranks make before one stays away.
struct bench {
  using exchange = peerbus::moe::exchange<peerbus::any_transport, int8_per_token>;

  explicit bench(communicator& on) : comm{on} {}

  [[nodiscard]] auto dispatch(deadline until) {
    return moe.dispatch(tokens, {experts, weights}, {.until = until});
  }

  communicator& comm;
  exchange moe{comm, {.experts = 2, .hidden = 64, .top_k = 1, .max_tokens = 4}, int8_per_token{}};
  peerbus::collective::team team{comm};
  peerbus::collective::channels ends{comm};
  peerbus::window<peerbus::any_transport> door = comm.make_window(0, 2);
  std::optional<exchange::received_type> rows;
  std::vector<bf16> tokens = std::vector<bf16>(64, bf16{1.0F});
  std::vector<std::int32_t> experts{1};
  std::vector<float> weights{1.0F};
};

/// A kind of wait: what both ranks do first, how rank 0 then waits in vain, and what its error says
/// besides what rank 1 was last seen doing.
struct kind_of_wait {
  std::function<void(bench&)> prepare;
  std::function<void(bench&, deadline)> wait;
  std::vector<std::string> says;
};

void prepare_nothing(bench& /*on*/) {}

const std::vector<kind_of_wait>& kinds() {
  static const std::vector<kind_of_wait> all{
      {prepare_nothing,
       [](bench& on, deadline until) { on.comm.barrier(until); },
       {"barrier 1, round 0: waited ", " ms for rank 1 (epoch 0, expected 1; "}},
      {prepare_nothing,
       [](bench& on, deadline until) { (void)on.dispatch(until); },
       {"dispatch 1: waited ", " ms for ", "rank 1 (epoch 0, expected 1; "}},
      {[](bench& on) { on.rows = on.dispatch(deadline::after(60s)); },
       [](bench& on, deadline until) {
         std::vector<bf16> out(64);
         on.moe.combine(*on.rows, out, {.until = until});
       },
       {"combine 1: waited ", " ms for outputs of rank 1 (epoch 0, expected 1; "}},
      {prepare_nothing,
       [](bench& on, deadline until) {
         std::vector<float> data(10);
         peerbus::collective::all_reduce(on.team, data, peerbus::collective::sum{},
                                         {.until = until});
       },
       {"all_reduce (collective call 1)", ": waited ", " ms for rank 1 (", " 1; "}},
      {prepare_nothing,
       [](bench& on, deadline until) {
         std::vector<float> data(10);
         peerbus::collective::recv(on.ends, data, absent, {.until = until});
       },
       {"batch_send_recv (call 1 of the channels)", ", after ", " ms: message 0 from rank 1"}},
      {prepare_nothing,
       [](bench& on, deadline until) { on.comm.agree("sizes", {}, until); },
       {"allgather for 'sizes': rank 1 of 2 did not come within ", " ms; rank 1 "}},
      {prepare_nothing,
       [](bench& on, deadline until) {
         const std::byte own{1};
         (void)on.comm.gather_in_view("sizes", {&own, 1}, until);
       },
       {"sizes in view 0: waited ", " ms for rank 1 ("}},
      {prepare_nothing,
       [](bench& on, deadline until) { on.door.await(signal_id{1}, 4, until, absent); },
       {"wait for signal 1 of 2 from rank 1", "seen 0 after ", " ms; rank 1 "}}};
  return all;
}

/// Waits until `rank` is seen waiting for the value `released`.
void await_absence(communicator& comm, rank_id rank) {
  for (;; std::this_thread::yield()) {
    const auto seen = comm.members()->last_seen(rank);
    if (seen && !seen->is_over && seen->wait.operation == group_operation::signal &&
        seen->wait.number == released)
      return;
  }
}

void check_kind(communicator& comm, const kind_of_wait& kind) {
  bench on{comm};
  kind.prepare(on);
  if (comm.rank() == absent)
    return on.door.await(signal_id{0}, released, deadline::after(100s), rank_id{0});
  await_absence(comm, absent);
  std::string text;
  try {
    kind.wait(on, deadline::after(30ms));
  } catch (const peerbus::error& caught) {
    test::expect_code(caught.code(), errc::timed_out, caught.what());
    text = caught.text();
  }
  for (const std::string& part : kind.says)
    test::expect(text.find(part) != std::string::npos, "'", part, "' in '", text, "'");
  for (const std::string_view part : {"last heard ", " ago, waiting in signal 7"})
    test::expect(text.find(part) != std::string::npos, "'", part, "' in '", text, "'");
  test::expect_ok(on.door.signal(absent, signal_id{0}, released), "signal");
}

}  // namespace

TEST_CASE("each kind of wait says how long it was, and what a missing rank was last seen doing") {
  for (const kind_of_wait& kind : kinds()) {
    CAPTURE(kind.says.front());
    const auto body = [&](peerbus::bootstrap& boot) {
      communicator comm{peerbus::any_transport{peerbus::unified_bus{boot}}};
      check_kind(comm, kind);
    };
    CHECK(peerbus::run_local(2, body) == 0);
    CHECK(peerbus::run_threads(2, body) == 0);
  }
}

TEST_CASE("a process that is stopped in a wait is heard no more, until it goes on") {
  CHECK(peerbus::run_local(2, [](peerbus::bootstrap& boot) {
          communicator comm{peerbus::any_transport{peerbus::unified_bus{boot}}};
          auto door = comm.make_window(sizeof(pid_t), 1);
          const pid_t own = ::getpid();
          std::memcpy(door.local().data(), &own, sizeof own);
          comm.barrier();
          if (comm.rank() == absent)
            return door.await(signal_id{0}, released, deadline::after(100s), rank_id{0});
          pid_t process = 0;
          test::expect_ok(door.get(absent, 0, std::span{&process, 1}), "get");
          await_absence(comm, absent);
          test::expect_equal(::kill(process, SIGSTOP), 0, "kill");
          const auto heard = [&] { return comm.members()->last_seen(absent)->heard; };
          while (heard() < 150ms) std::this_thread::yield();
          auto before = heard();
          test::expect_error(errc::timed_out,
                             {"barrier 2", "rank 1 (epoch 1, expected 2; last heard ",
                              " ago, waiting in signal 7"},
                             [&] { comm.barrier(deadline::after(50ms)); });
          test::expect(heard() > before, "that rank 1 was not heard meanwhile");
          test::expect(comm.members()->state(absent) == peerbus::rank_state::running,
                       "that a stopped rank lives");
          before = heard();
          test::expect_equal(::kill(process, SIGCONT), 0, "kill");
          while (heard() >= before) std::this_thread::yield();  // Its wait goes on.
          test::expect_ok(door.signal(absent, signal_id{0}, released), "signal");
        }) == 0);
}

TEST_CASE("looks at the others change by themselves, and alter no result") {
  const auto body = [](peerbus::bootstrap& boot) {
    peerbus::communicator comm{peerbus::unified_bus{boot}};
    std::atomic<bool> is_over{false};
    std::thread watcher{[&] {
      while (!is_over.load())
        for (const rank_id peer : comm.ranks()) {
          static_cast<void>(comm.members()->state(peer));
          static_cast<void>(comm.members()->last_seen(peer));
        }
    }};
    try {
      for (int round = 0; round < 10; ++round) test::do_a_round(comm);
      for (const rank_id peer : comm.ranks())
        if (const auto seen = comm.members()->last_seen(peer); !seen || seen->wait.number > 1)
          test::fail("rank ", peer.index(), " was not seen in its rounds");
    } catch (...) {
      is_over = true;
      watcher.join();
      throw;
    }
    is_over = true;
    watcher.join();
    comm.barrier();
  };
  CHECK(peerbus::run_local(3, body) == 0);
  CHECK(peerbus::run_threads(3, body) == 0);
}

}  // namespace last_seen_test
