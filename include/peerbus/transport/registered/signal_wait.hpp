// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>

#include <cstdint>
#include <optional>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/wait.hpp>

namespace peerbus::detail::registered {

/// Returns ok, or the reason why nothing can arrive any more from `awaited`, or from some rank if
/// it is empty. If it is ok and `awaited` is another rank, calls `probe(*awaited)`, which lets the
/// network ask whether that rank can still be reached.
template <class Network, class Probe>
[[nodiscard]] errc check_health(Network& net, std::optional<rank_id> awaited,
                                Probe&& probe) noexcept {
  if (const errc found = net.health(awaited); found != errc::ok) return found;
  if (awaited && *awaited != net.rank() && awaited->index() < net.size()) probe(*awaited);
  return errc::ok;
}

/// Continues `wait_for` after it has spun: yields, then sleeps, and checks whether peers are alive.
template <class Network, class Probe>
[[nodiscard]] errc wait_slowly(Network& net, signal_word& word, std::uint64_t value, deadline until,
                               std::optional<rank_id> awaited, Probe&& probe) noexcept {
  const wait_thresholds& thresholds = net.waiting();
  const auto pause = thresholds.check_interval;
  auto next_check = deadline::after(pause);
  for (std::uint32_t i = 0;; ++i) {
    net.poll();
    if (word.value() >= value) return errc::ok;
    const bool is_last_poll = until.expired();
    if (is_last_poll || next_check.expired()) {
      if (const errc found = check_health(net, awaited, probe); found != errc::ok) {
        // A signal that the peer raised before it was gone still counts.
        net.poll_all_arrivals();
        return word.value() >= value ? errc::ok : found;
      }
      if (is_last_poll) return errc::timed_out;
      next_check = deadline::after(pause);
    }
    if (i < thresholds.yields) {
      ::sched_yield();
      continue;
    }
    // A thread that has the channel may leave, and looks no more then.
    const deadline wake = next_look(until, thresholds);
    if (!net.park(word, value, wake))
      static_cast<void>(
          word.wait_at_least(value, wake, thresholds, []() noexcept { return errc::ok; }));
  }
}

/// Waits until `word`, a signal of this rank, is at least `value`, and takes arrivals meanwhile.
/// Calls `probe(*awaited)` every few milliseconds in a long wait. Contract as `wait` of
/// `transport`.
template <class Network, class Probe>
[[nodiscard]] errc wait_for(Network& net, signal_word& word, std::uint64_t value, deadline until,
                            std::optional<rank_id> awaited, Probe&& probe) noexcept {
  const wait_thresholds& thresholds = net.waiting();
  for (std::uint32_t i = 0; i <= thresholds.tight + thresholds.paused; ++i) {
    if (word.value() >= value) return errc::ok;
    net.poll_arrivals();
    if constexpr (Network::polls_may_last)
      if (until.expired()) break;
    if (i > thresholds.tight) pause_core();
  }
  return wait_slowly(net, word, value, until, awaited, probe);
}

}  // namespace peerbus::detail::registered
