// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>

#include <peerbus/core/futex.hpp>
#include <peerbus/core/signal.hpp>

namespace peerbus {

PEERBUS_INLINE void signal_word::wake_sleepers(std::uint32_t seen) noexcept {
  // Counts the wake-up and clears bit 0. A waiter that has announced itself since the load does not
  // fall asleep, because this store changes the word that the waiter compares.
  // order: relaxed; the futex call below is a full barrier.
  parked_.store(seen + 1, std::memory_order_relaxed);
  detail::futex_wake_all(parked_);
}

PEERBUS_INLINE void signal_word::park(std::uint64_t target, deadline until) noexcept {
  // order: seq_cst for both, so that the load of `value_` cannot move before the announcement; they
  // pair with `fence`.
  const std::uint32_t announced = parked_.fetch_or(1, std::memory_order_seq_cst) | 1U;
  if (value_.load(std::memory_order_seq_cst) >= target) return;
  detail::futex_wait(parked_, announced, until);
}

PEERBUS_INLINE errc signal_word::wait_slowly(std::uint64_t target, deadline until,
                                             const wait_thresholds& thresholds,
                                             detail::function_ref<errc()> health) noexcept {
  auto next_check = deadline::after(thresholds.check_interval);
  for (std::uint32_t i = 0;; ++i) {
    if (value() >= target) return errc::ok;
    const bool is_last_poll = until.expired();
    if (is_last_poll || next_check.expired()) {
      const errc found = health();
      // A value that the peer raised before it died still counts.
      if (found != errc::ok) return value() >= target ? errc::ok : found;
      if (is_last_poll) return value() >= target ? errc::ok : errc::timed_out;
      next_check = deadline::after(thresholds.check_interval);
    }
    if (i < thresholds.yields)
      ::sched_yield();
    else
      park(target, until.when() < next_check.when() ? until : next_check);
  }
}

}  // namespace peerbus
