// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/window.hpp>

namespace peerbus::moe {

/// Collects puts to one peer and hands them to the transport as runs, so that it takes its turn at
/// the peer's queue once for many rows. Puts leave in the order in which they were added.
template <transport Transport>
class put_list {
 public:
  /// Puts into the part of `memory` that `peer` has, from byte `base` on.
  put_list(window<Transport>& memory, rank_id peer, std::size_t base) noexcept
      : memory_{&memory}, peer_{peer}, base_{base} {}

  /// Adds a put of `bytes` from `source` to byte `offset` behind the base. Hands over all puts so
  /// far if the list is full.
  [[nodiscard]] errc add(std::size_t offset, const std::byte* source, std::size_t bytes) noexcept {
    if (count_ == pieces_.size())
      if (const errc code = leave(); code != errc::ok) return code;
    pieces_[count_++] = {base_ + offset, {source, bytes}};
    return errc::ok;
  }

  /// Hands over what was added since the last run.
  [[nodiscard]] errc leave() noexcept {
    const std::size_t count = count_;
    count_ = 0;
    return count == 0 ? errc::ok : memory_->put_run(peer_, std::span{pieces_.data(), count});
  }

 private:
  window<Transport>* memory_;
  rank_id peer_;
  std::size_t base_;
  std::size_t count_ = 0;
  std::array<put_piece, 32> pieces_;  ///< the first `count_` of them
};

}  // namespace peerbus::moe
