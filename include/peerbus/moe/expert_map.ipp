// SPDX-License-Identifier: MIT
#pragma once

#include <numeric>
#include <utility>

#include <peerbus/core/text.hpp>
#include <peerbus/moe/expert_map.hpp>

namespace peerbus::moe {

PEERBUS_INLINE std::string detail::describe_expert(std::uint32_t logical) {
  return logical == vacant ? "no expert" : peerbus::detail::concat("expert ", logical);
}

PEERBUS_INLINE expert_map::expert_map(const exchange_config& config, std::size_t rank_count)
    : logical_{config.physical_to_logical.begin(), config.physical_to_logical.end()},
      replica_starts_(config.experts + 1) {
  const expert_placement places = placement_of(config, rank_count);
  if (logical_.empty()) {
    logical_.resize(places.experts());
    std::iota(logical_.begin(), logical_.end(), 0U);
  }
  starts_.reserve(rank_count + 1);
  starts_.push_back(0);
  holders_.reserve(logical_.size());
  for (const rank_id rank : all_ranks{rank_count}) {
    holders_.insert(holders_.end(), places.count(rank), static_cast<std::uint32_t>(rank.index()));
    starts_.push_back(static_cast<std::uint32_t>(holders_.size()));
  }
  // A counting sort of the physical experts by their logical ones.
  for (const std::uint32_t expert : logical_)
    if (expert != vacant) ++replica_starts_[expert + 1];
  std::partial_sum(replica_starts_.begin(), replica_starts_.end(), replica_starts_.begin());
  replicas_.resize(replica_starts_.back());
  std::vector<std::uint32_t> next{replica_starts_};
  for (std::uint32_t p = 0; p < logical_.size(); ++p)
    if (logical_[p] != vacant) replicas_[next[logical_[p]]++] = p;
}

PEERBUS_INLINE void expert_map::lose(const std::vector<bool>& gone) {
  std::vector<bool> lost(experts());
  for (std::size_t e = 0; e < lost.size(); ++e) {
    const auto all = replicas(e);
    lost[e] =
        std::all_of(all.begin(), all.end(), [&](std::uint32_t p) { return gone[holders_[p]]; });
  }
  gone_ = gone;
  lost_ = std::move(lost);
}

PEERBUS_INLINE void expert_map::install(expert_map&& other) noexcept {
  std::copy(other.logical_.begin(), other.logical_.end(), logical_.begin());
  replica_starts_ = std::move(other.replica_starts_);
  replicas_ = std::move(other.replicas_);
  gone_ = std::move(other.gone_);
  lost_ = std::move(other.lost_);
}

}  // namespace peerbus::moe
