// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus {

/// The difference between the clock of rank 0 and that of this rank, CLOCK_MONOTONIC on both. If
/// rank 0 is gone, the first rank that is left takes its place.
struct clock_offset {
  std::int64_t nanoseconds = 0;  ///< to add to a time of this rank to get that of rank 0
  std::int64_t error = 0;        ///< the largest possible error of that, in nanoseconds
  std::int64_t measured = 0;     ///< when it was measured, by the clock of this rank

  /// Returns a time of this rank as rank 0 would read it. `later` is a second measurement: clocks
  /// drift apart, at an even pace between the two.
  [[nodiscard]] std::int64_t of_rank_0(std::int64_t time, const clock_offset& later) const noexcept;
};

/// Measures the offset of this rank's clock. Collective. Ranks on the kernel and in the time
/// namespace of rank 0 have its clock, so that offset and error are 0. For others, a time of rank 0
/// is known to lie between two events of this rank, and the error is half of the shortest such
/// period.
/// Cost: an allgather, and 17 more if ranks have different clocks.
/// Throws: `error` as `bootstrap::allgather`.
[[nodiscard]] clock_offset measure_clock(bootstrap& boot, deadline until);

namespace detail {
/// Measures as `measure_clock` does between ranks with different clocks, whether theirs differ or
/// not.
[[nodiscard]] clock_offset measure_other_clock(bootstrap& boot, deadline until);
}  // namespace detail

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/trace/clock_offset.ipp>  // IWYU pragma: keep
#endif
