// SPDX-License-Identifier: MIT
#pragma once

#include <numeric>

#include <peerbus/moe/expert_map.hpp>

namespace peerbus::moe {

PEERBUS_INLINE expert_map::expert_map(const exchange_config& config, std::size_t rank_count)
    : dealt_{config.experts, rank_count},
      routable_{config.experts},
      logical_{config.physical_to_logical.begin(), config.physical_to_logical.end()},
      physical_(config.experts) {
  if (logical_.empty()) {
    logical_.resize(config.experts);
    std::iota(logical_.begin(), logical_.end(), 0U);
  }
  for (std::uint32_t p = 0; p < config.experts; ++p) physical_[logical_[p]] = p;
  holders_.reserve(config.experts);
  for (const rank_id rank : all_ranks{rank_count})
    holders_.insert(holders_.end(), count(rank), static_cast<std::uint32_t>(rank.index()));
}

}  // namespace peerbus::moe
