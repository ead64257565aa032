// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/core/rank.hpp>
#include <peerbus/moe/lane.hpp>

namespace peerbus::moe {

/// The order in which a lane sends its share of a rank's tokens. Each rank starts at a different
/// position among its tokens and wraps around. If tokens are sorted by expert, the ranks therefore
/// do not all write to one peer at the same time.
class token_order {
 public:
  /// Orders the share of lane `caller` of the `tokens` tokens of `rank`, one of `rank_count`.
  token_order(std::size_t tokens, lane caller, rank_id rank, std::size_t rank_count) noexcept
      : share_{caller.share(tokens)}, start_{size() * rank.index() / rank_count} {}

  /// Returns the number of tokens in the lane's share.
  [[nodiscard]] std::size_t size() const noexcept { return share_.end - share_.begin; }
  /// Returns the token that is sent as number `i`, which is below `size()`.
  [[nodiscard]] std::size_t operator[](std::size_t i) const noexcept {
    return share_.begin + (start_ + i) % size();
  }

 private:
  lane::range share_;
  std::size_t start_;
};

}  // namespace peerbus::moe
