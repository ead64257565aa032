// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/communicator/subset.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/plan/expert_router.hpp>
#include <peerbus/moe/plan/level_configs.hpp>
#include <peerbus/moe/plan/objection.hpp>
#include <peerbus/moe/relay.hpp>

namespace peerbus::moe::detail {

/// The choice between one level and two, and the groups of near ranks that it was made for.
struct relay_plan {
  relay_choice chosen;
  near_groups groups;  ///< empty unless groups were asked for
};

/// Chooses between one level and two over a transport with near and far ranks. Collective. `config`
/// has been agreed on, and still has its costs. `groups` are those of near ranks, and `layout` is
/// that of the largest protocol that the layout can have.
/// Cost: one agreement.
/// Throws, on all ranks: `error` unsupported if `config.relay` is `always` but two levels are
/// impossible.
relay_plan plan_relay(rank_group& group, near_groups groups, const exchange_config& config,
                      const codec_facts& codec, const layout_facts& layout, deadline until);

/// Returns the choice of one level over a transport without near and far ranks. Collective if
/// `config.relay` is `always`.
/// Throws, on all ranks: `error` unsupported if `config.relay` is `always`.
relay_plan plan_without_groups(rank_group& group, const exchange_config& config, deadline until);

/// The ranks of the two levels, and the experts that each level knows. The home rank chooses the
/// replicas: the router of the far level goes by the choice for all ranks, and the near level has
/// each physical expert of its group once.
struct relay_ranks {
  /// Finds the ranks and experts of both levels. `group` and `boot` are those of all ranks, and
  /// must outlive the object. `by_rank` is true for layouts by rank.
  relay_ranks(rank_group& group, bootstrap& boot, const exchange_config& config,
              const near_groups& groups, bool by_rank);
  relay_ranks(const relay_ranks&) = delete;
  relay_ranks& operator=(const relay_ranks&) = delete;
  ~relay_ranks() = default;

  /// Returns the configurations of the levels for a column of `column` ranks and for group
  /// `group_number`.
  [[nodiscard]] level_configs configs(const exchange_config& config, const near_groups& groups,
                                      std::size_t column, std::size_t group_number) const noexcept;

  /// Returns the router of the far level by which tokens take the way of `all`. `far_config` is the
  /// configuration of that level.
  [[nodiscard]] expert_router far_router(const exchange_config& far_config,
                                         const expert_router& all) const;
  /// Returns the logical expert of each expert of the near level, or `vacant`.
  [[nodiscard]] std::vector<std::uint32_t> near_experts(const expert_map& all) const;

  /// Returns the rank that has a place of the far level, which is not `vacant` in `far_physical`.
  [[nodiscard]] rank_id owner(std::size_t place) const noexcept {
    return rank_id{router.map().holder(far_physical[place])};
  }

  expert_router router;                     ///< the router for all ranks
  std::vector<group_experts> experts;       ///< the experts of each group
  std::size_t own_group;                    ///< the group of this rank
  std::size_t near_copies;                  ///< the result of `copies_in_group`
  std::size_t most;                         ///< physical experts of the group that holds the most
  std::vector<std::uint32_t> far_physical;  ///< the physical expert of each place of the far
                                            ///< level, or `vacant` if no rank has the place
  peerbus::detail::subset_bootstrap far_boot;
  peerbus::detail::subset_bootstrap near_boot;
  peerbus::detail::subset_group far;   ///< the ranks of the column
  peerbus::detail::subset_group near;  ///< the ranks of the group
};

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/plan/relay_plan.ipp>  // IWYU pragma: keep
#endif
