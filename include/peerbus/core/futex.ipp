// SPDX-License-Identifier: MIT
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <ctime>

#include <peerbus/core/futex.hpp>
#include <peerbus/core/virtual_clock.hpp>

namespace peerbus::detail {

PEERBUS_INLINE void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                               deadline until) noexcept {
  if (auto* const simulated = clock_of_thread)
    return simulated->sleep(word, expected, until.when());
  timespec when{};
  timespec* timeout = nullptr;
  if (until.when() != deadline::clock::time_point::max()) {
    const auto since_boot = until.when().time_since_epoch();
    const auto seconds = std::chrono::floor<std::chrono::seconds>(since_boot);
    when.tv_sec = seconds.count();
    when.tv_nsec =
        std::chrono::duration_cast<std::chrono::nanoseconds>(since_boot - seconds).count();
    timeout = &when;
  }
  // FUTEX_WAIT_BITSET takes an absolute CLOCK_MONOTONIC time; FUTEX_WAIT takes a relative one.
  ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, timeout, nullptr,
            FUTEX_BITSET_MATCH_ANY);
}

PEERBUS_INLINE void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept {
  if (auto* const simulated = clock_of_thread) return simulated->wake(word);
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace peerbus::detail
