// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/communicator/any_window.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>

namespace peerbus::moe::detail {

/// The memory and signals by which each rank of an exchange tells all others something: bytes at an
/// offset that only one rank writes, and signals that only one rank raises. Offsets and signals are
/// those of the window.
///
/// More than `few_ranks` over a direct transport have one board, in the part of their first rank. A
/// notice is then written once, and one signal tells all ranks. Otherwise each rank has a board in
/// its own part, and the writer of a notice puts it to each board.
///
/// Functions that return `errc` return ok or the first failure of the transport.
class control_board {
 public:
  /// The largest number of ranks over a direct transport that have a board each. A rank also reads
  /// its own notice. On a shared board it then waits until the caches of its peers have given up
  /// the lines that it writes, which takes longer than writing a few copies (1.3 us of a dispatch
  /// of 2 ranks).
  static constexpr std::size_t few_ranks = 4;

  explicit control_board(any_window& window) noexcept
      : window_{&window},
        owner_{is_shared(window) ? window.group().view().members()[0] : window.group().rank()},
        bytes_{window.part(owner_)},
        is_shared_{is_shared(window)} {}

  /// Returns the address of byte `offset` of the board that this rank reads, and where it writes
  /// its own notices before it posts them.
  [[nodiscard]] std::byte* at(std::size_t offset) const noexcept { return bytes_ + offset; }

  /// Shows all peers the `bytes` bytes at `offset`, which this rank has written. Peers see them
  /// after the next signal of this rank.
  /// Cost: nothing on a shared board, else a put to each peer.
  [[nodiscard]] errc post(std::size_t offset, std::size_t bytes) noexcept {
    if (is_shared_) return errc::ok;
    for (const rank_id peer : window_->group().peers())
      if (const errc code = window_->put(peer, offset, std::span{at(offset), bytes});
          code != errc::ok)
        return code;
    return errc::ok;
  }
  /// Raises signal `id` to `value` for all peers.
  /// Cost: one signal on a shared board, else one to each peer.
  [[nodiscard]] errc announce(signal_id id, std::uint64_t value) noexcept {
    return is_shared_ ? window_->signal(owner_, id, value)
                      : window_->signal_each(window_->group().peers(), id, value);
  }

  /// Returns the present value of signal `id`. The notices that its raiser posted before are
  /// visible.
  [[nodiscard]] std::uint64_t value(signal_id id) const noexcept {
    return window_->value_at(owner_, id);
  }
  /// Waits until signal `id` is at least `value`. `raiser` is the rank that raises it.
  [[nodiscard]] errc wait(signal_id id, std::uint64_t value, deadline until,
                          rank_id raiser) noexcept {
    return window_->wait_at(owner_, id, value, until, raiser);
  }

 private:
  [[nodiscard]] static bool is_shared(const any_window& window) noexcept {
    return window.is_direct() && window.group().size() > few_ranks;
  }

  any_window* window_;
  rank_id owner_;  ///< the rank whose board this rank reads
  std::byte* bytes_;
  bool is_shared_;
};

}  // namespace peerbus::moe::detail
