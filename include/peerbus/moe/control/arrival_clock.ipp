// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>

#include <peerbus/core/error.hpp>
#include <peerbus/moe/control/arrival_clock.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE std::optional<rank_id> arrival_clock::measure(
    control_board& board, std::span<const rank_id> peers, signal_of signal, std::uint64_t epoch,
    deadline until, std::span<std::int64_t> waited) noexcept {
  using clock = deadline::clock;
  // The time between two polls of all signals. It is short compared with the delay of a slow rank.
  constexpr std::chrono::microseconds between_polls{10};
  const auto begin = deadline::now();
  const auto add_wait = [&](rank_id peer) noexcept {
    waited[peer.index()] +=
        std::chrono::duration_cast<std::chrono::nanoseconds>(deadline::now() - begin).count();
  };
  std::fill(has_come_.begin(), has_come_.end(), std::uint8_t{0});
  std::optional<rank_id> last;
  for (bool is_first = true;; is_first = false) {
    const rank_id* missing = nullptr;
    for (const rank_id& peer : peers) {
      if (has_come_[peer.index()] != 0) continue;
      if (board.value(signal(peer)) < epoch) {
        missing = &peer;
        continue;
      }
      has_come_[peer.index()] = 1;
      add_wait(peer);
      if (!is_first) last = peer;
    }
    if (missing == nullptr) return last;
    if (until.expired()) break;
    // A wait that times out makes a system call to check the peers. Therefore a late rank is looked
    // at less often as time passes. An error of a sixteenth of the wait is acceptable.
    const auto next_poll =
        deadline::after(std::max<clock::duration>((deadline::now() - begin) / 16, between_polls));
    const errc code = board.wait(signal(*missing), epoch,
                                 next_poll.when() < until.when() ? next_poll : until, *missing);
    if (code != errc::ok && code != errc::timed_out) break;
  }
  // The wait failed. The peers that are still missing are the ones that the caller looks for.
  for (const rank_id peer : peers)
    if (has_come_[peer.index()] == 0) add_wait(peer);
  return std::nullopt;
}

}  // namespace peerbus::moe::detail
