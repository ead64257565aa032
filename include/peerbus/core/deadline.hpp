// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

#include <peerbus/core/virtual_clock.hpp>

namespace peerbus {

/// A point on the steady clock after which a blocking call gives up. It is a point and not a
/// duration, so that a call that consists of several waits spends one budget. On Linux the steady
/// clock is CLOCK_MONOTONIC, which futexes also use for absolute times.
class deadline {
 public:
  /// The clock of all deadlines.
  using clock = std::chrono::steady_clock;

  /// Makes the deadline that expires at `when`; `time_point::max()` never expires.
  constexpr explicit deadline(clock::time_point when) noexcept : when_{when} {}

  /// Returns the present time of the steady clock, or of the simulation that runs this rank.
  [[nodiscard]] static clock::time_point now() noexcept {
    auto* const simulated = detail::clock_of_thread;
    return simulated == nullptr ? clock::now() : simulated->now();
  }

  ///@{
  /// Returns the point `span` from now. If that lies beyond the range of the clock, the deadline
  /// never expires.
  /// Cost: reads the clock once.
  [[nodiscard]] static deadline after(clock::duration span) noexcept {
    const auto current_time = now();
    return deadline{span > clock::time_point::max() - current_time ? clock::time_point::max()
                                                                   : current_time + span};
  }
  template <class Rep, class Period>
  [[nodiscard]] static deadline after(std::chrono::duration<Rep, Period> span) noexcept {
    return after(saturated(span));
  }
  ///@}
  /// Returns a deadline that never expires.
  [[nodiscard]] static constexpr deadline never() noexcept {
    return deadline{clock::time_point::max()};
  }

  /// Converts `span` to the clock's unit. A span beyond the range of the clock becomes the longest
  /// or shortest one in range, because the conversion of `std::chrono` would overflow and could
  /// change the sign.
  template <class Rep, class Period>
  [[nodiscard]] static constexpr clock::duration saturated(
      std::chrono::duration<Rep, Period> span) noexcept {
    // Floating point does not overflow here. A long double holds every 64-bit count exactly.
    const std::chrono::duration<long double, clock::period> wide{span};
    if (!(wide < clock::duration::max())) return clock::duration::max();
    if (!(wide > clock::duration::min())) return clock::duration::min();
    return std::chrono::duration_cast<clock::duration>(wide);
  }

  /// Returns whether the deadline has passed. Reads the clock unless the deadline never expires.
  [[nodiscard]] bool expired() const noexcept {
    return when_ != clock::time_point::max() && now() >= when_;
  }
  /// Returns the time that is left, never negative; the longest one if the deadline never expires.
  /// Reads the clock unless the deadline never expires.
  [[nodiscard]] clock::duration remaining() const noexcept {
    if (when_ == clock::time_point::max()) return clock::duration::max();
    const auto current_time = now();
    return when_ > current_time ? when_ - current_time : clock::duration::zero();
  }
  /// Returns the point itself, for calls that take absolute times.
  [[nodiscard]] constexpr clock::time_point when() const noexcept { return when_; }

 private:
  clock::time_point when_;
};

namespace detail {

/// Returns the earlier one of two deadlines.
[[nodiscard]] constexpr deadline earlier(deadline first, deadline second) noexcept {
  return first.when() < second.when() ? first : second;
}
/// Returns the later one of two deadlines.
[[nodiscard]] constexpr deadline later(deadline first, deadline second) noexcept {
  return first.when() < second.when() ? second : first;
}
/// Returns the deadline `span` after `first`. `span` is not negative. If the point lies beyond the
/// range of the clock, the deadline never expires.
[[nodiscard]] constexpr deadline postponed(deadline first,
                                           deadline::clock::duration span) noexcept {
  return first.when() > deadline::clock::time_point::max() - span ? deadline::never()
                                                                  : deadline{first.when() + span};
}

}  // namespace detail

}  // namespace peerbus
