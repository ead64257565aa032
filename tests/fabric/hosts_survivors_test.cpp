// SPDX-License-Identifier: MIT
// ctest: serial timeout=300
//
// Ranks of pretended hosts, which met over TCP as a mesh, are killed, and the others go on in a
// group made anew.
#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/communicator/survivors.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/fabric.hpp>
#include <peerbus/transport/planes.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "bootstrap/support.hpp"
#include "fabric/support.hpp"
#include "support/hosts.hpp"
#include "support/survivors.hpp"

namespace hosts_survivors_test {

namespace {

using hosts::any_transport;
using hosts::go_on;
using hosts::server;
using hosts::transport_maker;
using peerbus::errc;
using peerbus::rank_id;
using survivors::at;
using survivors::victim;

constexpr transport_maker over_fabric = hosts::over<peerbus::fabric>;
constexpr transport_maker over_planes =
    hosts::over<peerbus::planes<peerbus::unified_bus, peerbus::fabric>>;
constexpr int killed = 128 + SIGKILL;

void die() { ::raise(SIGKILL); }

/// How a rank makes what it serves with.
auto served_by(transport_maker make) {
  return [make](std::unique_ptr<peerbus::bootstrap> met) {
    return std::make_unique<server>(std::move(met), make);
  };
}

/// Serves until `left` ranks are left, in rounds in which `end(where)` is called.
template <class End>
void serve(std::unique_ptr<server> now, transport_maker make, std::size_t left, End end) {
  for (bool is_whole = true;;) {
    try {
      if (!is_whole) go_on(now, served_by(make), end);
      is_whole = true;
      now->check_rounds();
      if (now->comm.size() == left) return;
      for (std::uint64_t seed = 1;; ++seed)
        survivors::risky_round(now->moe, now->comm,
                               survivors::scenario_of(now->comm.view(), now->moe.placement(), seed),
                               end);
    } catch (const peerbus::error& problem) {
      if (problem.code() != errc::peer_dead && problem.code() != errc::poisoned) throw;
      is_whole = false;
    }
  }
}

/// One process per rank, on `hosts` hosts. Returns: their exit statuses, by rank.
template <class Body>
std::vector<int> run(std::size_t n, std::size_t hosts, transport_maker make, Body body) {
  const auto port = test::free_tcp_port();
  std::vector<pid_t> children;
  children.reserve(n);
  for (std::size_t rank = 0; rank < n; ++rank)
    children.push_back(test::in_child([&] {
      auto seat = test::tcp_seat(rank, n, port);
      seat.host = "host " + std::to_string(rank % hosts);
      seat.mesh = true;
      body(std::make_unique<server>(
          std::make_unique<peerbus::tcp_bootstrap>(seat, test::patience()), make));
      return 0;
    }));
  std::vector<int> statuses;
  statuses.reserve(n);
  for (const pid_t child : children) statuses.push_back(test::status_of(child));
  return statuses;
}

void check_statuses(const std::vector<int>& statuses, const std::set<std::size_t>& victims) {
  for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
    CAPTURE(rank);
    CHECK(statuses[rank] == (victims.contains(rank) ? killed : 0));
  }
}

/// The victims end at their places, those beyond the first round in the recovery.
void check(std::size_t n, transport_maker make, const std::vector<victim>& victims) {
  CAPTURE(n);
  const test::time_limit limit;
  std::set<std::size_t> gone;
  for (const victim& each : victims) gone.insert(each.rank);
  const auto statuses = run(n, 2, make, [&](std::unique_ptr<server> whole) {
    const std::size_t me = whole->comm.rank().index();
    serve(std::move(whole), make, n - victims.size(), [&](at where) {
      for (const victim& each : victims)
        if (each.rank == me && each.where == where) die();
    });
  });
  check_statuses(statuses, gone);
}

}  // namespace

TEST_CASE("any rank dies anywhere, and the others go on over planes and over fabric") {
  for (const at where : {at::dispatch, at::sent, at::published, at::barrier}) {
    CAPTURE(static_cast<int>(where));
    check(4, over_planes, {{0, where}});
    check(4, over_planes, {{3, where}});
  }
  check(3, over_fabric, {{0, at::sent}});
  check(3, over_fabric, {{2, at::experts}});
  check(2, over_fabric, {{0, at::published}});
}

TEST_CASE("two at once, a whole host, and one while the others agree or meet") {
  check(4, over_planes, {{1, at::sent}, {2, at::sent}});
  check(4, over_planes, {{0, at::sent}, {2, at::sent}});  // A host.
  check(4, over_planes, {{0, at::sent}, {1, at::agreement}});
  check(4, over_planes, {{2, at::barrier}, {0, at::resume}});
  check(4, over_fabric, {{0, at::dispatch}, {1, at::resume}, {2, at::agreement}});
}

TEST_CASE("at any moment, also while the others go on") {
  const test::time_limit limit{240};
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    constexpr std::size_t n = 5;
    const std::set<std::size_t> victims{
        seed % n, (seed * 3 + 1) % n == seed % n ? (seed + 1) % n : (seed * 3 + 1) % n};
    const auto statuses = run(n, 2, over_planes, [&](std::unique_ptr<server> whole) {
      const std::size_t me = whole->comm.rank().index();
      std::thread killer;
      if (victims.contains(me))
        killer = std::thread{[&] {
          std::this_thread::sleep_for(std::chrono::microseconds{(seed * 977 + me * 7919) % 60'000});
          die();
        }};
      serve(std::move(whole), over_planes, n - victims.size(), [](at) {});
    });
    check_statuses(statuses, victims);
  }
}

TEST_CASE("a rank that is stopped is not dead: a deadline ends the wait, and names it") {
  const test::time_limit limit;
  const test::shared<std::atomic<int>> stopped;
  const test::shared<std::atomic<int>> given_up;
  const test::shared<std::atomic<int>> told;
  const auto statuses = run(4, 2, over_planes, [&](std::unique_ptr<server> now) {
    const std::size_t me = now->comm.rank().index();
    now->check_rounds();
    if (me == 2) {
      *stopped = ::getpid();
      ::raise(SIGSTOP);
    }
    while (stopped->load() == 0) std::this_thread::yield();
    if (me == 3) die();
    test::expect_error(errc::peer_dead, {"rank 3 "}, [&] {
      for (;;) now->comm.barrier();
    });
    // By now each has told that it waits, but the one that is stopped.
    test::expect_error(errc::timed_out, {"rank 2 runs", "has not called"}, [&] {
      now->comm.continue_without_the_dead(peerbus::deadline::after(std::chrono::seconds{1}));
    });
    const auto& members = now->boot->members();
    const auto tells = [&] {
      static_cast<void>(members->first_failed());  // It looks.
      const auto other = members->last_seen(rank_id{1 - me});
      return other && other->wait.operation == peerbus::group_operation::view_change;
    };
    for (const auto until = test::patience(); !tells();)
      test::expect(!until.expired(), "what the other one waits for");
    for (const std::size_t bad : {me, std::size_t{4}})
      test::expect_error(errc::invalid_argument, {"expected other ranks below 4"},
                         [&] { now->comm.continue_without(std::vector{rank_id{bad}}); });
    ++*given_up;
    while (given_up->load() < 2) std::this_thread::yield();
    if (me == 1) now->comm.continue_without(std::vector{rank_id{2}});  // It says so for all.
    go_on(now, served_by(over_planes), [](at) {});
    test::expect_equal(now->comm.size(), 2U, "ranks");
    now->check_rounds();
    if (told->fetch_add(1) == 1) ::kill(stopped->load(), SIGKILL);
  });
  check_statuses(statuses, {2, 3});
}

TEST_CASE("what was made before says why it serves no more, and is destroyed at once") {
  const test::time_limit limit;
  const auto statuses = run(4, 2, over_planes, [&](std::unique_ptr<server> now) {
    auto window = std::make_unique<peerbus::window<any_transport>>(now->comm.make_window(4096, 1));
    if (now->comm.rank() == rank_id{0}) {
      now->comm.barrier();  // The others may still be in it when this rank is gone.
      die();
    }
    test::expect_error(errc::peer_dead, {"rank 0 "}, [&] {
      for (;;) now->comm.barrier();
    });
    const auto& view = now->comm.continue_without_the_dead();
    test::expect(view.number() == 1 && view.members().size() == 3, "a view of three");
    test::expect_error(errc::poisoned, {"survivors"}, [&] { now->comm.barrier(); });
    test::expect_error(errc::poisoned, {"survivors"},
                       [&] { static_cast<void>(now->comm.make_window(64, 1)); });
    test::expect_equal(now->comm.continue_without_the_dead().number(), 1U, "the same view");
    // An error of one rank ends it on all, and the group is as it was.
    test::expect_error(errc::unsupported, {"rank 2", "not today"}, [&] {
      now = peerbus::survivors(now->comm, [&](std::unique_ptr<peerbus::bootstrap> met) {
        if (met->rank() == rank_id{1}) throw peerbus::error{errc::unsupported, "not today"};
        return std::make_unique<server>(std::move(met), over_planes);
      });
    });
    auto next = peerbus::survivors(now->comm, [](std::unique_ptr<peerbus::bootstrap> met) {
      return std::make_unique<server>(std::move(met), over_planes);
    });
    test::expect_equal(next->comm.size(), 3U, "survivors");
    const auto start = std::chrono::steady_clock::now();
    window.reset();
    now = std::move(next);
    test::expect(std::chrono::steady_clock::now() - start < std::chrono::seconds{10},
                 "an end of what was made before");
    now->check_rounds();
  });
  check_statuses(statuses, {0});
}

}  // namespace hosts_survivors_test
