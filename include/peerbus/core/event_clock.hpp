// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include <peerbus/core/compiled.hpp>

namespace peerbus::detail {

/// A thread's clock for the times of events: CLOCK_MONOTONIC in nanoseconds, at a third of its
/// cost. On x86-64 the cpu's counter of ticks tells the time between two readings of
/// CLOCK_MONOTONIC, which are at most a millisecond apart. Without a counter of constant rate,
/// each call reads CLOCK_MONOTONIC.
///
/// A time is exact to a microsecond, and mostly to a tenth of that. It never is earlier than the
/// one before on the same thread.
class event_clock {
 public:
  constexpr event_clock() noexcept = default;

  /// Returns the present time.
  /// Cost: reads the counter; each millisecond also CLOCK_MONOTONIC.
  [[nodiscard]] std::int64_t now() noexcept {
#if defined(__x86_64__)
    const std::uint64_t passed = ::__rdtsc() - read_.ticks;
    if (passed < trusted_ticks_)
      return latest_ = read_.time + static_cast<std::int64_t>(passed * rate_ >> rate_bits);
#endif
    return latest_ = read();
  }
  /// Returns the latest result of `now`.
  [[nodiscard]] std::int64_t latest() const noexcept { return latest_; }

 private:
  static constexpr unsigned rate_bits = 32;
  /// Both clocks at one moment.
  struct moment {
    std::uint64_t ticks = 0;
    std::int64_t time = 0;
  };
  /// Reads CLOCK_MONOTONIC, and what `now` needs for the next millisecond.
  [[nodiscard]] std::int64_t read() noexcept;

  std::int64_t latest_ = 0;
  moment first_{};                   ///< from which the rate is measured
  moment read_{};                    ///< the latest
  std::uint64_t trusted_ticks_ = 0;  ///< after `read_`; 0: the counter is not used
  std::uint64_t rate_ = 0;           ///< nanoseconds of a tick, times 2^rate_bits
};

/// The clock of this thread.
inline constinit thread_local event_clock events_clock;

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/core/event_clock.ipp>  // IWYU pragma: keep
#endif
