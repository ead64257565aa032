// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <utility>

#include <peerbus/moe/plan/copy_order.hpp>

namespace peerbus::moe {

PEERBUS_INLINE copy_order::copy_order(const exchange_config& config, const block_geometry& geometry,
                                      std::size_t rank_count)
    : copies_(config.max_tokens * geometry.copies_per_token),
      begins_(rank_count + 1),
      next_(geometry.blocks.experts()) {}

PEERBUS_INLINE void copy_order::sort(const send_plan& leaving) noexcept {
  // A counting sort by block. Blocks are in the order of ranks, and the rows of a block are in the
  // order of tokens.
  const block_geometry& geometry = leaving.geometry();
  const auto for_each_sent = [&](auto&& visit) noexcept {
    for (std::size_t c = 0; c < leaving.tokens() * geometry.copies_per_token; ++c)
      if (leaving.place_of(c).sent()) visit(static_cast<copy_number>(c), leaving.block_of(c));
  };
  std::fill(next_.begin(), next_.end(), 0U);
  for_each_sent([&](copy_number, std::size_t block) { ++next_[block]; });
  std::uint32_t position = 0;
  std::size_t b = 0;
  for (std::size_t owner = 0; owner + 1 < begins_.size(); ++owner) {
    begins_[owner] = position;
    for (const std::size_t end = b + geometry.blocks.count(rank_id{owner}); b < end; ++b)
      position += std::exchange(next_[b], position);
  }
  begins_.back() = position;
  for_each_sent([&](copy_number copy, std::size_t block) { copies_[next_[block]++] = copy; });
}

}  // namespace peerbus::moe
