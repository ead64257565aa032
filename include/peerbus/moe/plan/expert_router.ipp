// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <utility>

#include <peerbus/moe/plan/expert_router.hpp>

namespace peerbus::moe {

namespace detail {

/// Returns `near`, or if it is empty the distances of ranks of which nothing is known.
inline std::vector<std::uint32_t> known_distances(std::vector<std::uint32_t> near, rank_id rank,
                                                  std::size_t rank_count) {
  if (!near.empty()) return near;
  near.assign(rank_count, 1);
  near[rank.index()] = 0;
  return near;
}

inline std::vector<std::uint32_t> kept(std::span<const std::uint32_t> given) {
  return {given.begin(), given.end()};
}

}  // namespace detail

PEERBUS_INLINE expert_router::expert_router(const exchange_config& config, rank_id rank,
                                            std::size_t rank_count, std::vector<std::uint32_t> near)
    : rank_{rank},
      map_{config, rank_count},
      policy_{config.replicas.policy},
      quotas_{detail::kept(config.replicas.quotas)},
      chosen_{detail::kept(config.replicas.chosen)},
      near_{detail::known_distances(std::move(near), rank, rank_count)},
      distances_{config.replicas.distances.empty() ? near_
                                                   : detail::kept(config.replicas.distances)},
      cycles_{map_, choice(), rank} {}

PEERBUS_INLINE void expert_router::lose(const std::vector<bool>& gone) {
  map_.lose(gone);
  cycles_ = replica_cycles{map_, choice(), rank_};
}

PEERBUS_INLINE expert_router expert_router::next(const exchange_config& config) const {
  expert_router made{config, rank_, map_.ranks(), near_};
  if (map_.has_lost()) made.lose(map_.gone());
  return made;
}

PEERBUS_INLINE void expert_router::install(expert_router&& other) noexcept {
  map_.install(std::move(other.map_));
  policy_ = other.policy_;
  quotas_ = std::move(other.quotas_);
  chosen_ = std::move(other.chosen_);
  distances_ = std::move(other.distances_);
  cycles_ = std::move(other.cycles_);
}

}  // namespace peerbus::moe
