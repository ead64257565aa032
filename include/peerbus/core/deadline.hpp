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

  /// Returns the point `span` from now. A span that ends beyond the clock's range means never.
  [[nodiscard]] static deadline after(clock::duration span) noexcept {
    const auto now = clock::now();
    return deadline{span > clock::time_point::max() - now ? clock::time_point::max() : now + span};
  }
  template <class Rep, class Period>
  [[nodiscard]] static deadline after(std::chrono::duration<Rep, Period> span) noexcept {
    return after(saturated(span));
  }
  [[nodiscard]] static constexpr deadline never() noexcept {
    return deadline{clock::time_point::max()};
  }

  /// Converts `span` to the clock's unit. A span beyond the range of that unit becomes its longest
  /// or shortest one, because the conversion of <chrono> would overflow and could change the sign.
  template <class Rep, class Period>
  [[nodiscard]] static constexpr clock::duration saturated(
      std::chrono::duration<Rep, Period> span) noexcept {
    // Floating point does not overflow here. A long double holds every 64-bit count exactly.
    const std::chrono::duration<long double, clock::period> wide{span};
    if (!(wide < clock::duration::max())) return clock::duration::max();
    if (!(wide > clock::duration::min())) return clock::duration::min();
    return std::chrono::duration_cast<clock::duration>(wide);
  }

  [[nodiscard]] bool expired() const noexcept {
    return when_ != clock::time_point::max() && clock::now() >= when_;
  }
  /// Time left, never negative.
  [[nodiscard]] clock::duration remaining() const noexcept {
    if (when_ == clock::time_point::max()) return clock::duration::max();
    const auto now = clock::now();
    return when_ > now ? when_ - now : clock::duration::zero();
  }
  [[nodiscard]] constexpr clock::time_point when() const noexcept { return when_; }

 private:
  clock::time_point when_;
};

}  // namespace peerbus
