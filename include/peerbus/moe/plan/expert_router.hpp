// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/plan/replica_cycles.hpp>
#include <peerbus/moe/replica_choice.hpp>

namespace peerbus::moe {

/// The routing of one rank's rows to experts: the map of all ranks and this rank's choice of
/// replicas. It changes only while no dispatch is under way.
class expert_router {
 public:
  /// Makes the router of `rank` from a configuration that has been checked, and keeps none of its
  /// spans. `near` has the distances of the ranks for a choice without distances. If it is empty,
  /// they are 0 for this rank and 1 for all others.
  expert_router(const exchange_config& config, rank_id rank, std::size_t rank_count,
                std::vector<std::uint32_t> near = {});

  /// Returns the experts that each rank holds.
  [[nodiscard]] const expert_map& map() const noexcept { return map_; }
  /// Returns the map, so that its experts can be renamed.
  [[nodiscard]] expert_map& map() noexcept { return map_; }
  /// Returns the replicas to which this rank sends.
  [[nodiscard]] const replica_cycles& cycles() const noexcept { return cycles_; }

  /// Chooses replicas by `cycles` from now on. The physical experts of `cycles` must be those of
  /// the map.
  void choose_by(replica_cycles&& cycles) noexcept { cycles_ = std::move(cycles); }

  /// Sets which ranks are gone: the ranks r with `gone[r]`, [ranks]. Replicas then serve their
  /// experts, or the experts are lost.
  /// Cost: allocates.
  void lose(const std::vector<bool>& gone);
  /// Returns a router for the experts and the choice of `config`, which have been checked, among
  /// the ranks that are not gone here.
  [[nodiscard]] expert_router next(const exchange_config& config) const;
  /// Takes over the experts and the choice of `other`, which `next` has made.
  void install(expert_router&& other) noexcept;

 private:
  /// Returns the choice, with the lists that are kept here.
  [[nodiscard]] replica_choice choice() const noexcept {
    return {policy_, quotas_, chosen_, distances_};
  }

  rank_id rank_;
  expert_map map_;
  replica_policy policy_;
  std::vector<std::uint32_t> quotas_;
  std::vector<std::uint32_t> chosen_;
  std::vector<std::uint32_t> near_;       ///< [ranks] distances for a choice that gives none
  std::vector<std::uint32_t> distances_;  ///< [ranks]
  replica_cycles cycles_;
};

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/plan/expert_router.ipp>  // IWYU pragma: keep
#endif
