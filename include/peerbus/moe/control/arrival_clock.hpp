// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/moe/control/control_board.hpp>

namespace peerbus::moe::detail {

/// The measurement of the time that a rank waits for each peer. Only the constructor allocates.
class arrival_clock {
 public:
  explicit arrival_clock(std::size_t rank_count) : has_come_(rank_count) {}

  /// A function that returns the signal of a peer.
  using signal_of = peerbus::detail::function_ref<signal_id(rank_id)>;

  /// Adds to `waited`, in nanoseconds for each rank, the time until the signal of each peer is at
  /// least `epoch`, or until a wait fails. Returns then; the caller must wait again to get the
  /// error.
  /// Returns: the peer that came last; nothing if all had come at the start, or if a wait failed.
  std::optional<rank_id> measure(control_board& board, std::span<const rank_id> peers,
                                 signal_of signal, std::uint64_t epoch, deadline until,
                                 std::span<std::int64_t> waited) noexcept;

 private:
  std::vector<std::uint8_t> has_come_;
};

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/control/arrival_clock.ipp>  // IWYU pragma: keep
#endif
