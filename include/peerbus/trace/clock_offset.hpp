// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus {

/// The difference between the clock of rank 0 and the clock of this rank, CLOCK_MONOTONIC on both.
/// If rank 0 is gone, the first rank that is left takes its place.
struct clock_offset {
  std::int64_t nanoseconds = 0;  ///< the number to add to a time of this rank to get the time of
                                 ///< rank 0
  std::int64_t error = 0;        ///< the largest possible error of `nanoseconds`, in nanoseconds
  std::int64_t measured = 0;     ///< the time of the measurement, by the clock of this rank

  /// Converts a time of this rank to the time of rank 0. `later` is a second measurement. The
  /// clocks are assumed to drift apart at an even pace between the two measurements.
  [[nodiscard]] std::int64_t of_rank_0(std::int64_t time, const clock_offset& later) const noexcept;
};

/// Measures the offset of this rank's clock. Collective. Ranks with the kernel and the time
/// namespace of rank 0 have its clock, so that offset and error are 0. For other ranks, a time of
/// rank 0 is known to lie between two events of this rank. The error is half of the shortest such
/// period.
/// Cost: an allgather, and 17 more if ranks have different clocks.
/// Throws: `error` as `bootstrap::allgather`.
[[nodiscard]] clock_offset measure_clock(bootstrap& boot, deadline until);

namespace detail {
/// Measures as `measure_clock` does for ranks with different clocks, even if the clocks are the
/// same.
[[nodiscard]] clock_offset measure_other_clock(bootstrap& boot, deadline until);
}  // namespace detail

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/trace/clock_offset.ipp>  // IWYU pragma: keep
#endif
