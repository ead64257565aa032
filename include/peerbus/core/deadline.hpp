// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

namespace peerbus {

/// A point on the steady clock after which a blocking call gives up. A point, not a duration, so
/// that a call made of several waits spends one budget. On Linux the steady clock is
/// CLOCK_MONOTONIC, the clock that futexes take absolute times of.
class deadline {
 public:
  using clock = std::chrono::steady_clock;

  constexpr explicit deadline(clock::time_point when) noexcept : when_{when} {}

  [[nodiscard]] static deadline after(clock::duration span) noexcept {
    const auto now = clock::now();
    // Saturates: "an hour of seconds" times a million must not wrap into the past.
    return deadline{span > clock::time_point::max() - now ? clock::time_point::max() : now + span};
  }
  [[nodiscard]] static constexpr deadline never() noexcept {
    return deadline{clock::time_point::max()};
  }

  [[nodiscard]] bool expired() const noexcept {
    return when_ != clock::time_point::max() && clock::now() >= when_;
  }
  /// Time left, never negative.
  [[nodiscard]] clock::duration remaining() const noexcept {
    if (when_ == clock::time_point::max()) return clock::duration::max();
    const auto left = when_ - clock::now();
    return left > clock::duration::zero() ? left : clock::duration::zero();
  }
  [[nodiscard]] constexpr clock::time_point when() const noexcept { return when_; }

 private:
  clock::time_point when_;
};

}  // namespace peerbus
