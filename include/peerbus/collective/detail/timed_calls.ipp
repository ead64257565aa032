// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>

#include <peerbus/collective/detail/timed_calls.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// Returns the time, in nanoseconds, of the clock that all processes of a host share. It begins
/// again with 0 every four seconds.
inline std::uint32_t now_in_notice() noexcept {
  const auto now = deadline::now().time_since_epoch();
  return static_cast<std::uint32_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

/// Returns the later of two such times, if they are less than two seconds apart.
constexpr std::uint32_t later_of(std::uint32_t a, std::uint32_t b) noexcept {
  return static_cast<std::int32_t>(a - b) > 0 ? a : b;
}

PEERBUS_INLINE void timed_calls::tell(std::uint64_t round, bool comes) noexcept {
  round_notice& own = pages_.notice_of_own(round);
  own.began = comes ? std::max(now_in_notice(), 1U) : 0;
  own.ended = ended_;
}

PEERBUS_INLINE void timed_calls::take(std::uint64_t round, way_trials::running& call) noexcept {
  if (!left_ && !call.is_timed) return;
  // From the first rank on, on all ranks: if ranks come so far apart that `later_of` is wrong, all
  // find the same wrong time.
  std::uint32_t ended = pages_.notice(round, rank_id{0}).ended;
  call.began = pages_.notice(round, rank_id{0}).began;
  for (const rank_id rank : pages_.group().ranks()) {
    const round_notice& notice = pages_.notice(round, rank);
    ended = later_of(ended, notice.ended);
    call.began = later_of(call.began, notice.began);
    if (notice.began == 0) call.is_timed = false;
  }
  if (left_) pages_.trials().add(*left_, ended);
  left_.reset();
}

PEERBUS_INLINE void timed_calls::leave(const way_trials::running& call) noexcept {
  if (!call.counts) return;
  pages_.trials().count(call);
  if (!call.is_timed) return;
  left_ = call;
  ended_ = now_in_notice();
}

}  // namespace peerbus::collective::detail
