// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/detail/notice_board.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::moe::detail {

/// Measures how long a rank waits for each of its peers. Only the constructor allocates.
class arrival_clock {
 public:
  explicit arrival_clock(std::size_t ranks) : has_come_(ranks) {}

  /// Adds to `waited`, in nanoseconds for each rank, the time until the signal `signal_of(peer)` of
  /// each peer is at least `epoch`. Returns when all are, or when a wait fails, which the caller
  /// then finds again.
  template <transport Transport, class SignalOf>
  void measure(notice_board<Transport>& board, std::span<const rank_id> peers, SignalOf&& signal_of,
               std::uint64_t epoch, deadline until, std::span<std::int64_t> waited) noexcept {
    using clock = std::chrono::steady_clock;
    // The time between two looks at all signals. It is short compared with the delay of a slow
    // rank.
    constexpr std::chrono::microseconds between_looks{10};
    const auto begin = clock::now();
    std::fill(has_come_.begin(), has_come_.end(), std::uint8_t{0});
    for (;;) {
      const rank_id* missing = nullptr;
      for (const rank_id& peer : peers) {
        if (has_come_[peer.index()] != 0) continue;
        if (board.value(signal_of(peer)) < epoch) {
          missing = &peer;
          continue;
        }
        has_come_[peer.index()] = 1;
        waited[peer.index()] +=
            std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now() - begin).count();
      }
      if (missing == nullptr || until.expired()) return;
      // A wait that times out makes a system call to check the peers. Therefore a late rank is
      // looked at less often as time passes. An error of a sixteenth of the wait is acceptable.
      const auto next_look =
          deadline::after(std::max<clock::duration>((clock::now() - begin) / 16, between_looks));
      const errc code = board.wait(signal_of(*missing), epoch,
                                   next_look.when() < until.when() ? next_look : until, *missing);
      if (code != errc::ok && code != errc::timed_out) return;
    }
  }

 private:
  std::vector<std::uint8_t> has_come_;
};

}  // namespace peerbus::moe::detail
