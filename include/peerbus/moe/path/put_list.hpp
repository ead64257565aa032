// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include <peerbus/communicator/any_window.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus::moe {

/// A list of puts to one peer. It passes them to the transport in runs, so that the transport takes
/// the lock of the peer's queue once for many rows. Puts leave in the order in which they were
/// added.
class put_list {
 public:
  /// Makes an empty list of puts into the peer's part of `memory`. Their offsets count from `base`.
  put_list(any_window& memory, rank_id peer, std::size_t base) noexcept
      : memory_{&memory}, peer_{peer}, base_{base} {}

  /// Adds a put of `bytes` bytes from `source` to byte `base` + `offset`. If the list is full,
  /// first passes its puts to the transport.
  [[nodiscard]] errc add(std::size_t offset, const std::byte* source, std::size_t bytes) noexcept {
    if (count_ == pieces_.size())
      if (const errc code = leave(); code != errc::ok) return code;
    pieces_[count_++] = {base_ + offset, {source, bytes}};
    return errc::ok;
  }

  /// Passes the puts of the list to the transport. The list is then empty.
  [[nodiscard]] errc leave() noexcept {
    const std::size_t count = count_;
    count_ = 0;
    return count == 0 ? errc::ok : memory_->put_run(peer_, std::span{pieces_.data(), count});
  }

 private:
  any_window* memory_;
  rank_id peer_;
  std::size_t base_;
  std::size_t count_ = 0;
  std::array<put_piece, 32> pieces_;  ///< the first `count_` are in use
};

}  // namespace peerbus::moe
