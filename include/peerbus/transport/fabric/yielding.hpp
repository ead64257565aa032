// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail::ofi {

/// Decides when a thread that waits for latency traffic polls bulk traffic: if there was no latency
/// traffic for `yield_after`, or if there was latency traffic all the time for `starve_after`.
///
/// Threads: any.
/// order: relaxed throughout; the numbers guard no memory. Threads that change them at once poll
/// bulk traffic a little earlier or later.
class yielding {
 public:
  /// Notes that this rank is about to send latency traffic.
  void note_call() noexcept {
    calls_.store(calls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  /// Returns whether to poll bulk traffic now. `taken` is the number of completions of latency
  /// traffic.
  [[nodiscard]] bool bulk_is_due(std::uint32_t taken) noexcept {
    const count now = clock::now().time_since_epoch().count();
    const auto since = [now](const std::atomic<count>& then) noexcept {
      return clock::duration{now - then.load(std::memory_order_relaxed)};
    };
    const std::uint32_t busy = calls_.load(std::memory_order_relaxed) + taken;
    if (busy_.exchange(busy, std::memory_order_relaxed) != busy) {
      // Bulk traffic had all the time before.
      if (since(busy_at_) >= yield_after) polled_at_.store(now, std::memory_order_relaxed);
      busy_at_.store(now, std::memory_order_relaxed);
    }
    if (since(busy_at_) < yield_after && since(polled_at_) < starve_after) return false;
    polled_at_.store(now, std::memory_order_relaxed);
    return true;
  }

 private:
  using clock = std::chrono::steady_clock;
  using count = clock::rep;
  static constexpr std::chrono::microseconds yield_after{200};
  static constexpr std::chrono::microseconds starve_after{1000};

  std::atomic<std::uint32_t> calls_{0};
  std::atomic<std::uint32_t> busy_{0};  ///< calls and completions, as the last poll found them
  std::atomic<count> busy_at_{0};       ///< time when a poll last found more of them
  std::atomic<count> polled_at_{0};     ///< time when bulk traffic was last polled, or was polled
                                        ///< all the time
};

}  // namespace peerbus::detail::ofi
