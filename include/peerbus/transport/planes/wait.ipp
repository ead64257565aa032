// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>

#include <peerbus/core/wait_readable.hpp>
#include <peerbus/transport/planes/wait.hpp>

namespace peerbus::detail {

PEERBUS_INLINE errc wait_on_planes(signal_word& word, std::uint64_t target, deadline until,
                                   const wait_thresholds& thresholds,
                                   const plane_calls& planes) noexcept {
  auto next_check = deadline::after(thresholds.check_interval);
  for (std::uint32_t i = 0;; ++i) {
    if (planes.poll() >= target) return errc::ok;
    const bool is_last_poll = until.expired();
    if (is_last_poll || next_check.expired()) {
      const errc found = planes.health();
      // A signal that the peer raised before it was gone still counts.
      if (found != errc::ok) return planes.poll() >= target ? errc::ok : found;
      if (is_last_poll) return planes.poll() >= target ? errc::ok : errc::timed_out;
      next_check = deadline::after(thresholds.check_interval);
    }
    if (i < thresholds.yields) {
      ::sched_yield();
      continue;
    }
    const deadline wake = next_look(until, thresholds);  // Not every plane wakes a waiter.
    if (planes.arm()) {
      if (word.value() < target) wait_readable(planes.fd, wake);
      planes.disarm();
    } else {
      static_cast<void>(
          word.wait_at_least(target, wake, thresholds, []() noexcept { return errc::ok; }));
    }
  }
}

}  // namespace peerbus::detail
