// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/bootstrap/tcp_join_running.hpp>
#include <peerbus/bootstrap/with_vacancies.hpp>
#include <peerbus/communicator/admission.hpp>
#include <peerbus/communicator/survivors.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

#include "bootstrap/support.hpp"
#include "support/hosts.hpp"
#include "support/plan.hpp"
#include "support/survivors.hpp"

/// Plans (support/plan.hpp) of ranks of two pretended hosts.
namespace hosts {

constexpr std::size_t capacity = 5;

/// What a rank serves with that others may join.
struct member : server {
  peerbus::admission door;

  member(std::unique_ptr<peerbus::bootstrap> met, transport_maker make,
         const peerbus::tcp_settings& place)
      : server{std::move(met), make}, door{comm, place} {}
};

inline peerbus::tcp_settings place_of(std::size_t slot, std::uint16_t port) {
  auto place = test::tcp_seat(slot, capacity, port, "127.0.0.2,127.0.0.1");
  place.host = "host " + std::to_string(slot % 2);
  return place;
}

inline auto made_at(const peerbus::tcp_settings& place, transport_maker make) {
  return [place, make](std::unique_ptr<peerbus::bootstrap> boot) {
    return std::make_unique<member>(std::move(boot), make, place);
  };
}

/// Starts a group with the slots `first` filled.
inline std::unique_ptr<member> begin(const peerbus::tcp_settings& place, transport_maker make,
                                     const plans::slots& first) {
  auto seat = plans::seat_among(first, place);
  seat.address = "127.0.0.1";
  seat.mesh = true;
  return made_at(place, make)(
      peerbus::with_vacancies(std::make_unique<peerbus::tcp_bootstrap>(seat, test::patience()),
                              {first.begin(), first.end()}, capacity));
}

/// Returns the rank of a slot.
inline rank_id rank_at(const member& now, std::size_t slot) {
  for (const rank_id rank : now.comm.ranks())
    if (now.boot->slot(rank).index() == slot) return rank;
  test::fail("no rank has the slot ", slot);
}

/// How the rank of `place` serves, and comes to do so.
struct on_hosts {
  peerbus::tcp_settings place;
  transport_maker make;

  [[nodiscard]] std::unique_ptr<member> begin(const plans::slots& first) const {
    return hosts::begin(place, make, first);
  }
  [[nodiscard]] std::unique_ptr<member> join() const {
    return peerbus::join_running(place, made_at(place, make), test::patience());
  }
  void go_on(std::unique_ptr<member>& now, const plans::slots& evicted) const {
    std::vector<rank_id> out;
    for (const std::size_t slot : evicted) out.push_back(rank_at(*now, slot));
    hosts::go_on(now, made_at(place, make), [](survivors::at) {}, out);
  }
  [[nodiscard]] bool admit(std::unique_ptr<member>& now) const {
    auto next = now->door.admit(made_at(place, make));
    if (next) now = std::move(*next);
    return next.has_value();
  }
  void serve(member& now) const { now.check_rounds(); }
};

/// Plays a plan over transports that `make` makes. Slots are killed after `moment`.
inline void play(const plans::plan& phases, transport_maker make,
                 std::chrono::milliseconds moment) {
  const test::time_limit limit;
  const auto port = test::free_tcp_port();
  const auto body = [&](plans::board& shared, std::size_t slot) {
    plans::live(phases, shared, slot, on_hosts{place_of(slot, port), make});
  };
  plans::job{phases, body, [moment] { return moment; }, 1, 0}.run();
}

/// Rounds, from which all `count` ranks have returned when one returns: who puts another out ends
/// what the others wait for.
inline void check_rounds_of_all(member& now, std::atomic<std::size_t>& ready, std::size_t count) {
  now.check_rounds();
  ++ready;
  while (ready != count) std::this_thread::yield();
}

/// What a rank that is put out does before it learns that.
enum class then : std::uint8_t {
  stopped,       ///< nothing; it is continued when the others have left the old group
  serves,        ///< as if nothing was
  gathers,       ///< when the others have gone on, and have not left
  puts_them_out  ///< then, too
};

/// The others of `all` put a rank out, and go on. It learns that, and comes back.
inline void check_eviction(transport_maker make, const plans::slots& all, std::size_t evicted,
                           then does) {
  CAPTURE(evicted);
  CAPTURE(static_cast<int>(does));
  const bool is_stopped = does == then::stopped;
  const bool others_stay = does == then::gathers || does == then::puts_them_out;
  const test::time_limit limit;
  const auto port = test::free_tcp_port();
  const test::shared<std::atomic<pid_t>> stopping;
  const test::shared<std::atomic<std::size_t>> served;
  const test::shared<std::atomic<bool>> has_learned;
  const test::shared<std::atomic<std::size_t>> ready;
  const auto learn_and_come_back = [&](std::unique_ptr<member>& now,
                                       const peerbus::tcp_settings& place) {
    *stopping = ::getpid();
    if (is_stopped) ::raise(SIGSTOP);
    while (others_stay && *served + 1 < all.size()) std::this_thread::yield();
    std::vector<rank_id> others;
    for (const rank_id rank : now->comm.ranks())
      if (rank != now->comm.rank()) others.push_back(rank);
    if (!others_stay) static_cast<void>(test::error_of([&] { now->check_rounds(); }));
    test::expect_error(errc::view_changed, {"the other ranks went on without rank"}, [&] {
      if (does == then::gathers)
        static_cast<void>(now->comm.gather_in_view("anything", {}, test::patience()));
      else if (does == then::puts_them_out)
        now->comm.continue_without(others);
      else
        now->comm.continue_without_the_dead();
    });
    *has_learned = true;
    now.reset();
    now = peerbus::join_running(place, made_at(place, make), test::patience());
  };
  const auto go_on_and_admit = [&](std::unique_ptr<member>& now,
                                   const peerbus::tcp_settings& place) {
    while (*stopping == 0) std::this_thread::yield();
    if (is_stopped) {
      const auto problem = test::error_of(
          [&] { now->comm.barrier(peerbus::deadline::after(std::chrono::milliseconds{300})); });
      // The first whose patience ends puts the rank out, and the others hear of that.
      test::expect(problem.code() == errc::timed_out ||
                       problem.text().find(" was given up") != std::string::npos,
                   "a timeout, or news: ", problem.what());
    }
    now->comm.continue_without(std::vector{rank_at(*now, evicted)});
    auto old = std::exchange(now, peerbus::survivors(now->comm, made_at(place, make)));
    if (!others_stay) old.reset();
    now->check_rounds();
    if (++*served == all.size() - 1) ::kill(*stopping, SIGCONT);
    while (old && !*has_learned) std::this_thread::yield();
    old.reset();
    for (const auto until = test::patience();;) {
      test::expect(!until.expired(), "a rank that comes back");
      auto next = now->door.admit(made_at(place, make));
      if (!next) continue;
      now = std::move(*next);
      return;
    }
  };
  std::vector<pid_t> children;
  children.reserve(all.size());
  for (const std::size_t slot : all)
    children.push_back(test::in_child([&] {
      const auto place = place_of(slot, port);
      auto now = begin(place, make, all);
      check_rounds_of_all(*now, *ready, all.size());
      if (slot == evicted)
        learn_and_come_back(now, place);
      else
        go_on_and_admit(now, place);
      test::expect_equal(now->comm.size(), all.size(), "ranks");
      now->check_rounds();
      return 0;
    }));
  for (const pid_t child : children) CHECK(test::status_of(child) == 0);
}

/// The first of three ranks puts the second one out while that and the third wait for it. Both hear
/// of it at once, and not at their deadlines. `host_of(slot)` names a slot's host.
template <class HostOf>
void check_waits_of_eviction(transport_maker make, HostOf host_of) {
  using waiting = std::function<void(member&)>;
  for (const waiting& wait :
       {waiting{[](member& now) { now.comm.barrier(); }},
        waiting{[](member& now) { now.check_rounds(); }},
        waiting{[](member& now) { static_cast<void>(now.comm.make_window(64, 1)); }}}) {
    const test::time_limit limit;
    const auto port = test::free_tcp_port();
    const test::shared<std::atomic<std::size_t>> ready;
    const test::shared<std::atomic<bool>> has_learned;  // The second one,
    const test::shared<std::atomic<bool>> has_heard;    // and the third. Nobody leaves before.
    std::array<pid_t, 3> children{};
    for (std::size_t slot = 0; slot < children.size(); ++slot)
      children[slot] = test::in_child([&] {
        auto place = place_of(slot, port);
        place.host = host_of(slot);
        auto now = begin(place, make, {0, 1, 2});
        check_rounds_of_all(*now, *ready, children.size());
        const std::vector<rank_id> evicted{rank_id{1}};
        if (slot != 0)
          test::expect_error(errc::peer_dead, {"rank 1 was given up by another"},
                             [&] { wait(*now); });
        if (slot == 1) {
          test::expect_error(errc::view_changed, {"the other ranks went on without rank 1"},
                             [&] { now->comm.continue_without_the_dead(); });
          *has_learned = true;
          while (!*has_heard) std::this_thread::yield();
          return 0;
        }
        if (slot == 2) *has_heard = true;
        if (slot == 0)
          now->comm.continue_without(evicted);
        else
          now->comm.continue_without_the_dead();
        const auto old = std::exchange(now, peerbus::survivors(now->comm, made_at(place, make)));
        while (!*has_learned) std::this_thread::yield();
        now->check_rounds();
        return 0;
      });
    for (const pid_t child : children) CHECK(test::status_of(child) == 0);
  }
}

}  // namespace hosts
