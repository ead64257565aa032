// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/departures.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/road/copy_order.hpp>

namespace peerbus::moe {

PEERBUS_CONTROL_PATH copy_order::copy_order(const exchange_config& config,
                                            const block_geometry& geometry, std::size_t ranks)
    : copies_(config.max_tokens * geometry.copies_per_token),
      begins_(ranks + 1),
      next_(geometry.blocks.experts()) {}

PEERBUS_INLINE void copy_order::sort(const departures& leaving) noexcept {
  // A counting sort: blocks are dealt out in the order of ranks, and the rows of one go by token.
  const block_geometry& geometry = leaving.geometry();
  const std::size_t ranks = begins_.size() - 1;
  std::uint32_t before = 0;
  std::size_t b = 0;
  for (const rank_id owner : all_ranks{ranks}) {
    begins_[owner.index()] = before;
    for (const std::size_t end = b + geometry.blocks.count(owner); b < end; ++b) {
      next_[b] = before;
      before += leaving.counts()[b];
    }
  }
  begins_[ranks] = before;
  for (std::size_t c = 0; c < leaving.tokens() * geometry.copies_per_token; ++c)
    if (leaving.place_of(c).sent())
      copies_[next_[leaving.block_of(c)]++] = static_cast<copy_number>(c);
}

}  // namespace peerbus::moe
