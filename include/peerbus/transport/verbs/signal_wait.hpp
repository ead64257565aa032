// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/verbs/network.hpp>
#include <peerbus/transport/verbs/turn.hpp>

namespace peerbus::detail::rdma {

/// The part of `wait_for` after it has spun: yields, then sleeps, and looks after the peers.
[[nodiscard]] inline errc wait_slowly(network& net, signal_word& word, std::uint64_t value,
                                      deadline until, std::optional<rank_id> awaited) noexcept {
  constexpr std::chrono::milliseconds longest_sleep{2};
  const wait_thresholds& thresholds = net.waiting();
  const auto pause = thresholds.check_interval;
  auto next_check = deadline::after(pause);
  for (std::uint32_t i = 0;; ++i) {
    net.arriving().look();
    if (word.value() >= value) return errc::ok;
    const bool is_last_look = until.expired();
    if (is_last_look || next_check.expired()) {
      if (const errc found = net.health(awaited); found != errc::ok) {
        // A signal that the peer raised before it was gone still counts.
        net.arriving().look_at_all_arrivals();
        return word.value() >= value ? errc::ok : found;
      }
      if (awaited && *awaited != net.rank() && awaited->index() < net.size())
        if (auto mine = turn::take_free(net, net.to(*awaited))) mine->probe();
      if (is_last_look) return errc::timed_out;
      next_check = deadline::after(pause);
    }
    if (i < thresholds.yields) {
      ::sched_yield();
      continue;
    }
    // Soon, whatever the policy: a thread that has the channel may leave, and looks no more then.
    deadline wake = deadline::after(std::min<std::chrono::nanoseconds>(pause, longest_sleep));
    if (until.when() < wake.when()) wake = until;
    if (!net.arriving().park(word, value, wake))
      static_cast<void>(
          word.wait_at_least(value, wake, thresholds, []() noexcept { return errc::ok; }));
  }
}

/// Waits until `word`, a signal of this rank, is at least `value`, and takes arrivals meanwhile.
/// Contract as `wait` of `transport`.
[[nodiscard]] inline errc wait_for(network& net, signal_word& word, std::uint64_t value,
                                   deadline until, std::optional<rank_id> awaited) noexcept {
  const wait_thresholds& thresholds = net.waiting();
  for (std::uint32_t i = 0; i <= thresholds.tight + thresholds.paused; ++i) {
    if (word.value() >= value) return errc::ok;
    net.arriving().look_at_arrivals();
    if (i > thresholds.tight) pause_core();
  }
  return wait_slowly(net, word, value, until, awaited);
}

}  // namespace peerbus::detail::rdma
