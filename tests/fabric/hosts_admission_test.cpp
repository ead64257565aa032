// SPDX-License-Identifier: MIT
// ctest: serial timeout=300
//
// Ranks of pretended hosts, which met over TCP as a mesh, lose ranks and take in others.
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/tcp_join_running.hpp>
#include <peerbus/bootstrap/tcp_settings.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/fabric.hpp>
#include <peerbus/transport/planes.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "bootstrap/support.hpp"
#include "fabric/support.hpp"
#include "support/hosts.hpp"
#include "support/hosts_plan.hpp"
#include "support/plan.hpp"
#include "support/sanitized.hpp"
#include "support/silent_children.hpp"
#include "support/survivors.hpp"

namespace hosts_admission_test {

namespace {

using hosts::member;
using hosts::place_of;
using peerbus::errc;

constexpr int killed = 128 + SIGKILL;
constexpr auto over_planes = hosts::over<peerbus::planes<peerbus::unified_bus, peerbus::fabric>>;

/// Plays a plan, whose slots are killed after `moment`.
void play(const plans::plan& phases, std::chrono::milliseconds moment) {
  hosts::play(phases, over_planes, moment);
}

/// Starts two processes with the slots 0 and 3, which do `body(group, place)`.
template <class Body>
std::array<pid_t, 2> start_two(std::uint16_t port, Body body) {
  std::array<pid_t, 2> children{};
  for (std::size_t i = 0; i < children.size(); ++i)
    children[i] = test::in_child([&] {
      const auto place = place_of(3 * i, port);
      body(hosts::begin(place, over_planes, {0, 3}), place);
      return 0;
    });
  return children;
}

/// Calls `admit` until somebody is taken in or refused. Returns the new group, or null.
std::unique_ptr<member> admit_soon(member& now, const peerbus::tcp_settings& place) {
  const auto until = test::patience();
  for (;;) {
    if (auto next = now.door.admit(hosts::made_at(place, over_planes))) return std::move(*next);
    if (!now.door.refusal().empty()) return nullptr;
    test::expect(!until.expired(), "somebody who waits");
  }
}

/// Returns whether `is_over`, the same on all ranks. Collective.
bool is_last(const member& now, const std::atomic<bool>& is_over) {
  const auto seen = now.boot->allgather({{static_cast<std::byte>(is_over.load())}, {}},
                                        test::patience(), "the end");
  return seen[0].bytes[0] != std::byte{};
}

/// Serves, and takes nobody in, until `is_over`.
void serve_until(const std::atomic<bool>& is_over, member& now,
                 const peerbus::tcp_settings& place) {
  do {
    test::expect(!now.door.admit(hosts::made_at(place, over_planes)), "nobody is taken in");
    now.check_rounds();
  } while (!is_last(now, is_over));
}

}  // namespace

TEST_CASE("ranks die and come back, also the one that listens, and a group grows") {
  play({{{0, 1, 2}, {}}, {{1, 2}, {0}}, {{0, 1, 2, 3}, {}}, {{3}, {0, 1, 2}}, {{1, 3}, {}}}, {});
  play({{{2}, {}}, {{0, 2, 3}, {}}, {{0, 3}, {}}, {{0, 1, 2, 3}, {}}}, {});
}

TEST_CASE("a rank that is stopped, or lives, is put out, learns it, and comes back") {
  using hosts::then;
  constexpr auto over_fabric = hosts::over<peerbus::fabric>;
  hosts::check_eviction(over_planes, {0, 1, 2, 3}, 0, then::stopped);
  hosts::check_eviction(over_planes, {0, 1, 2, 3}, 3, then::stopped);
  hosts::check_eviction(over_fabric, {0, 1, 3}, 1, then::stopped);
  hosts::check_eviction(over_fabric, {0, 1}, 1, then::stopped);
  for (const then does : {then::serves, then::gathers, then::puts_them_out}) {
    for (const std::size_t evicted : {0U, 3U})
      hosts::check_eviction(over_planes, {0, 1, 2, 3}, evicted, does);
    // The second of two goes on only when the first one has answered.
    hosts::check_eviction(over_fabric, {0, 1}, does == then::serves ? 0 : 1, does);
  }
}

TEST_CASE("waits end when another rank puts somebody out") {
  const auto two_hosts = [](std::size_t slot) { return "host " + std::to_string(slot % 2); };
  hosts::check_waits_of_eviction(over_planes, two_hosts);
  hosts::check_waits_of_eviction(hosts::over<peerbus::fabric>, two_hosts);
  hosts::check_waits_of_eviction(over_planes, [](std::size_t) { return std::string{"one host"}; });
}

TEST_CASE("a process that dies at any moment while it joins") {
  for (int moment = 0; moment < 60; moment += 12) {
    CAPTURE(moment);
    play({{{0, 3}, {}}, {{0, 3}, {1}}, {{0, 1, 3}, {}}}, std::chrono::milliseconds{moment});
  }
}

TEST_CASE("a process that dies while it makes what it needs") {
  const test::time_limit limit;
  const auto port = test::free_tcp_port();
  const auto children = start_two(port, [](std::unique_ptr<member> now, const auto& place) {
    test::expect(admit_soon(*now, place) == nullptr, "a refusal");
    // The slots 0, 1 and 3 have met as ranks 0, 1 and 2.
    test::expect(now->door.refusal().find("rank 1") != std::string::npos, now->door.refusal());
    now->check_rounds();
  });
  const pid_t child = test::in_child([&] {
    const auto place = place_of(1, port);
    static_cast<void>(peerbus::join_running(place, [&](std::unique_ptr<peerbus::bootstrap> boot) {
      ::raise(SIGKILL);
      return hosts::made_at(place, over_planes)(std::move(boot));
    }));
    return 0;
  });
  CHECK(test::status_of(child) == killed);
  for (const pid_t each : children) CHECK(test::status_of(each) == 0);
}

TEST_CASE("what a newcomer makes differs") {
  const test::time_limit limit;
  const auto port = test::free_tcp_port();
  constexpr std::string_view difference = "top_k is 3 on rank 0 but 2 on rank 1";
  const auto children = start_two(port, [&](std::unique_ptr<member> now, const auto& place) {
    test::expect(admit_soon(*now, place) == nullptr, "a refusal");
    test::expect(now->door.refusal().find(difference) != std::string::npos, now->door.refusal());
    now->check_rounds();
  });
  const pid_t child = test::in_child([&] {
    const auto place = place_of(1, port);
    test::expect_error(errc::mismatch, {difference}, [&] {
      static_cast<void>(peerbus::join_running(place, [](std::unique_ptr<peerbus::bootstrap> boot) {
        peerbus::communicator<peerbus::any_transport> comm{over_planes(*boot)};
        auto config = survivors::config;
        config.top_k = 2;
        const hosts::exchange other{comm, config, peerbus::codec::int8_per_token{}};
        return boot;
      }));
    });
    return 0;
  });
  CHECK(test::status_of(child) == 0);
  for (const pid_t each : children) CHECK(test::status_of(each) == 0);
}

TEST_CASE("a child that a rank forks speaks for no rank of a group that another joined") {
  const test::time_limit limit;
  const auto port = test::free_tcp_port();
  const auto fork_in_turn = [](std::unique_ptr<member> now) {
    test::expect(now != nullptr, "one that is taken in");
    if (test::is_silent_child(*now->boot)) {
      now.reset();
      ::_exit(0);
    }
    now->check_rounds();
  };
  const auto children = start_two(port, [&](std::unique_ptr<member> now, const auto& place) {
    fork_in_turn(admit_soon(*now, place));
  });
  const pid_t newcomer = test::in_child([&] {
    const auto place = place_of(1, port);
    fork_in_turn(peerbus::join_running(place, hosts::made_at(place, over_planes)));
    return 0;
  });
  CHECK(test::status_of(newcomer) == 0);
  for (const pid_t each : children) CHECK(test::status_of(each) == 0);
}

TEST_CASE("two that claim one slot") {
  const test::time_limit limit;
  const auto port = test::free_tcp_port();
  const test::shared<std::atomic<bool>> is_refused;
  const auto children = start_two(port, [&](std::unique_ptr<member> now, const auto& place) {
    auto next = admit_soon(*now, place);
    test::expect(next != nullptr && plans::members_of(next->comm) == plans::slots{0, 2, 3},
                 "one that is taken in");
    now = std::move(next);  // The old group listens no more, and who called it calls again.
    serve_until(*is_refused, *now, place);
  });
  std::array<pid_t, 2> claimants{};
  for (pid_t& each : claimants)
    each = test::in_child([&] {
      const auto place = place_of(2, port);
      try {
        const auto mine = peerbus::join_running(place, hosts::made_at(place, over_planes));
        serve_until(*is_refused, *mine, place);
      } catch (const peerbus::error& problem) {
        const std::string_view text = problem.text();
        if (text.find("came twice") == text.npos && text.find("runs in the group") == text.npos)
          throw;
        test::expect(!is_refused->exchange(true), "one that is refused");
      }
      return 0;
    });
  for (const pid_t each : claimants) CHECK(test::status_of(each) == 0);
  for (const pid_t each : children) CHECK(test::status_of(each) == 0);
  CHECK(*is_refused);
}

TEST_CASE("who cannot be taken in is told why, and the group goes on") {
  const test::time_limit limit;
  const auto port = test::free_tcp_port();
  const test::shared<std::atomic<bool>> is_over;
  const auto children = start_two(port, [&](std::unique_ptr<member> now, const auto& place) {
    serve_until(*is_over, *now, place);
  });
  const auto is_refused = [&](const peerbus::tcp_settings& place, errc code,
                              std::string_view reason) {
    CAPTURE(reason);
    // A stranger that may be early, or late, calls until its deadline.
    const std::chrono::milliseconds patience{test::is_sanitized ? 3000 : 700};
    const pid_t child = test::in_child([&] {
      test::expect_error(code, {reason}, [&] {
        static_cast<void>(peerbus::join_running(place, hosts::made_at(place, over_planes),
                                                peerbus::deadline::after(patience)));
      });
      return 0;
    });
    CHECK(test::status_of(child) == 0);
  };
  is_refused(place_of(3, port), errc::mismatch, "runs in the group: expected a rank that is not");
  auto larger = place_of(1, port);
  larger.size = 7;
  is_refused(larger, errc::mismatch, "world size of 7, and the group has 5");
  auto stranger = place_of(1, port);
  stranger.secret = "another secret than theirs";
  is_refused(stranger, errc::mismatch, "the secret differs: a running group of 5");
  auto other_job = place_of(1, port);
  other_job.job = "another job";
  is_refused(other_job, errc::timed_out, "is of another job than rank 1");
  *is_over = true;
  for (const pid_t child : children) CHECK(test::status_of(child) == 0);
}

}  // namespace hosts_admission_test
