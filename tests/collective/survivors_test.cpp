// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include "support/survivors.hpp"

#include <signal.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/collective.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "collective/suite.hpp"
#include "collective/values.hpp"
#include "collective/windows.hpp"
#include "support/ranks.hpp"
#include "support/repetitions.hpp"
#include "support/tally.hpp"

// Ranks end, and the teams and channels of the others go on in the memory that they have.

namespace survivors_collective_test {
namespace {

namespace coll = peerbus::collective;
using communicator = peerbus::communicator<peerbus::any_transport>;
using peerbus::errc;
using peerbus::rank_id;
using processes =
    test::any_over<peerbus::any_transport, test::processes_over<peerbus::unified_bus>>;
using threads = test::any_over<peerbus::any_transport, test::threads_over<peerbus::loopback>>;

struct end : std::runtime_error {
  end() : std::runtime_error{"ends as the test wants"} {}
};
template <class Group>
void die() {
  if constexpr (Group::are_threads) throw end{};
  ::raise(SIGKILL);
}

/// A team and channels of a communicator, and a window for operands.
struct server {
  explicit server(communicator& of)
      : comm{of}, on{of}, mail{of}, memory{of.make_window(std::size_t{1} << 20U, 0)} {}

  void resume() {
    on.resume();
    mail.resume();
    // Its number is the same on all, although some may have made one more window before.
    memory = comm.make_window(memory.local().size(), 0);
    test::expect(memory.number() >> 16U == comm.view().number(), "a number of this view");
  }
  /// Sends `message` to the next member of the view. Returns what comes from the one before.
  std::vector<std::uint16_t> pass_on(const std::vector<std::uint16_t>& message) {
    const auto members = comm.view().members();
    const std::size_t own = comm.view().place_of(comm.rank());
    const rank_id next = members[(own + 1) % members.size()];
    const rank_id before = members[(own + members.size() - 1) % members.size()];
    std::vector<std::uint16_t> got(message.size());
    coll::batch_send_recv(mail, {coll::send_to(next, message), coll::recv_from(before, got)});
    return got;
  }
  /// Calls operations that are not checked until one fails.
  template <class End>
  [[noreturn]] void serve(End may_end) {
    std::vector<float> sums(3'000, 1.0F);
    std::vector<std::uint16_t> rows(100'000 * on.size());
    const std::vector<std::uint16_t> row(100'000, 7);
    for (;;) {
      may_end();
      coll::all_reduce(on, sums, coll::sum{});
      may_end();
      coll::all_gather(on, row, rows);
      may_end();
      static_cast<void>(pass_on(row));
      may_end();
      auto halves = coll::start_all_gather(on, row, rows);
      may_end();
      halves.finish();
      may_end();
      comm.barrier();
    }
  }
  /// Checks operations of all kinds, of operands that take each way.
  void check(std::uint64_t salt) {
    test::expect_equal(on.size(), comm.view().members().size(), "ranks of the team");
    test::expect_equal(on.rank().index(), comm.view().place_of(comm.rank()), "rank in the team");
    for (const std::size_t count : {3U, 20'000U}) {
      collective_suite::check_copies<std::int32_t>(on, count, salt);
      collective_suite::check_reductions<float>(on, count, salt, coll::sum{});
      collective_suite::check_window_operands<float>(on, memory, count, salt);
      const auto message = [&](rank_id of) {
        return std::vector<std::uint16_t>(count * 8,
                                          static_cast<std::uint16_t>(100 * salt + of.index()));
      };
      const auto members = comm.view().members();
      const std::size_t own = comm.view().place_of(comm.rank());
      test::expect(pass_on(message(comm.rank())) ==
                       message(members[(own + members.size() - 1) % members.size()]),
                   "the message of the rank before");
    }
  }

  communicator& comm;
  coll::team on;
  coll::channels mail;
  peerbus::window<peerbus::any_transport> memory;
};

/// The victims end one after the other, each at the operation `turn` of `serve`, or if it is later.
template <class Group>
void check(std::size_t ranks, const std::vector<std::size_t>& victims, std::uint64_t turn) {
  CAPTURE(ranks);
  CAPTURE(turn);
  const test::tally ended;
  const int status =
      Group::run(ranks,
                 [&](communicator& comm) {
                   server all{comm};
                   all.check(1);
                   for (std::size_t gone = 0; gone < victims.size(); ++gone) {
                     std::uint64_t calls = 0;
                     survivors::insist(
                         comm,
                         [&] {
                           if (comm.view().number() == gone)
                             all.serve([&] {
                               if (comm.rank().index() == victims[gone] && ++calls > turn + gone)
                                 die<Group>();
                             });
                           all.check(gone + 2);
                           comm.barrier();
                         },
                         [&] {
                           comm.continue_without_the_dead();
                           all.resume();
                         });
                   }
                   ended.add();
                 },
                 {.timeout = std::chrono::minutes{2}});
  CHECK(status == (Group::are_threads ? 1 : 128 + SIGKILL));
  CHECK(ended.count() == ranks - victims.size());
}

}  // namespace

TEST_CASE_TEMPLATE("a rank ends before or in any operation", Group, processes, threads) {
  for (const std::uint64_t turn : {0U, 1U, 2U, 3U, 4U, 8U}) check<Group>(2, {0}, turn);
  for (const std::uint64_t turn : {1U, 4U}) check<Group>(4, {0, 3, 1}, turn);
}

TEST_CASE("a rank is killed at any moment") {
  for (std::uint64_t seed = 1; seed <= test::repetitions(20, 3); ++seed) {
    CAPTURE(seed);
    const std::size_t ranks = 2 + seed % 3;
    const test::tally ended;
    const int status = processes::run(ranks, [&](communicator& comm) {
      server all{comm};
      std::thread killer;
      if (comm.rank().index() == seed % ranks)
        killer = std::thread{[seed] {
          std::this_thread::sleep_for(std::chrono::microseconds{seed * 977 % 9'000});
          ::raise(SIGKILL);
        }};
      survivors::insist(
          comm,
          [&] {
            if (comm.view().number() == 0)
              all.serve([&] { static_cast<void>(comm.make_window(64, 1)); });
            all.check(seed);
            comm.barrier();
          },
          [&] {
            comm.continue_without_the_dead();
            all.resume();
          });
      ended.add();
    });
    CHECK(status == 128 + SIGKILL);
    CHECK(ended.count() == ranks - 1);
  }
}

TEST_CASE("what was between its halves is given up, and the gone are refused") {
  const int status = threads::run(3, [](communicator& comm) {
    server all{comm}, dropped{comm};
    std::vector<float> sums(10, 1.0F);
    std::vector<float> got(10);
    const rank_id other{2 - comm.rank().index()};
    const auto halves = [&](server& of) {
      return coll::start_all_reduce(of.on, sums, coll::sum{});
    };
    const auto messages = [&](server& of) {
      return coll::start_recv(of.mail, got, rank_id{comm.rank() == rank_id{1} ? 0U : 1U});
    };
    auto finished = halves(all);
    auto mailed = messages(all);
    std::optional dropped_halves{halves(dropped)};
    std::optional dropped_messages{messages(dropped)};
    if (comm.rank() == rank_id{1}) die<threads>();
    test::expect_error(errc::peer_dead, {"rank 1"}, [&] {
      for (;;) comm.barrier();
    });
    comm.continue_without_the_dead();
    dropped_halves.reset();
    dropped_messages.reset();
    comm.barrier();  // Nothing is poisoned.
    test::expect_error(errc::view_changed, {"all_reduce", "view 1"},
                       [&] { coll::all_reduce(all.on, sums, coll::sum{}); });
    test::expect_error(errc::view_changed, {"batch_send_recv", "view 1"},
                       [&] { coll::send(all.mail, sums, other); });
    comm.order_peers({rank_id{1}, other});
    test::expect_equal(comm.peers().size(), 1U, "peers in the view");
    all.resume();
    test::expect_error(errc::view_changed, {"finish", "all_reduce"}, [&] { finished.finish(); });
    test::expect_error(errc::view_changed, {"finish", "channels"}, [&] { mailed.finish(); });
    test::expect_error(errc::invalid_argument, {"resume of a team in view 1"},
                       [&] { all.on.resume(); });
    test::expect_error(errc::invalid_argument, {"resume of channels in view 1"},
                       [&] { all.mail.resume(); });
    test::expect_error(errc::invalid_argument, {"a message with rank 1, which is not in view 1"},
                       [&] { coll::send(all.mail, sums, rank_id{1}); });
    all.check(4);
    // Made in this view.
    server later{comm};
    later.check(5);
    comm.barrier();
  });
  CHECK(status == 1);
}

}  // namespace survivors_collective_test
