// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/core/rank.hpp>
#include <peerbus/moe/lane.hpp>

namespace peerbus::moe {

/// The order in which a lane sends its share of a rank's tokens. Each rank starts elsewhere among
/// its tokens and goes round: where they are sorted by expert, not all ranks write to the same peer
/// at once.
class token_order {
 public:
  token_order(std::size_t tokens, lane as, rank_id rank, std::size_t ranks) noexcept
      : share_{as.share(tokens)}, start_{size() * rank.index() / ranks} {}

  [[nodiscard]] std::size_t size() const noexcept { return share_.end - share_.begin; }
  /// The token that is sent as number `i`, below `size()`.
  [[nodiscard]] std::size_t operator[](std::size_t i) const noexcept {
    return share_.begin + (start_ + i) % size();
  }

 private:
  lane::range share_;
  std::size_t start_;
};

}  // namespace peerbus::moe
