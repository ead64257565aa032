// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>

namespace peerbus::moe {

namespace detail {
/// Returns "expert 3", or "no expert" for `vacant`.
[[nodiscard]] std::string describe_expert(std::uint32_t logical);
}  // namespace detail

/// The experts that each rank holds. *Physical* experts are places for experts, numbered through
/// the ranks. Each physical expert stands for one *logical* expert, or is `vacant`. The physical
/// experts of one logical expert are its *replicas*. `routing` contains logical experts. The terms
/// come from DeepSeek's load balancer, EPLB.
class expert_map {
 public:
  /// Makes the map from `config.physical_to_logical` and `config.experts_of_rank`, which have been
  /// checked.
  expert_map(const exchange_config& config, std::size_t rank_count);

  /// Returns the number of logical experts.
  [[nodiscard]] std::size_t experts() const noexcept { return replica_starts_.size() - 1; }
  /// Returns the number of physical experts.
  [[nodiscard]] std::size_t physical_experts() const noexcept { return logical_.size(); }
  /// Returns the number of ranks.
  [[nodiscard]] std::size_t ranks() const noexcept { return starts_.size() - 1; }
  /// Returns the number of physical experts that `rank` holds.
  [[nodiscard]] std::size_t count(rank_id rank) const noexcept {
    return starts_[rank.index() + 1] - starts_[rank.index()];
  }
  /// Returns the first physical expert of `rank`, even if the rank holds none.
  [[nodiscard]] std::size_t first(rank_id rank) const noexcept { return starts_[rank.index()]; }
  /// Returns the rank that holds the first replica of logical expert `expert`.
  [[nodiscard]] rank_id owner(std::size_t expert) const noexcept {
    return rank_id{holder(physical(expert))};
  }
  /// Returns the first replica of logical expert `expert`.
  [[nodiscard]] std::uint32_t physical(std::size_t expert) const noexcept {
    return replicas_[replica_starts_[expert]];
  }
  /// Returns the physical experts of logical expert `expert` in ascending order, at least one.
  [[nodiscard]] std::span<const std::uint32_t> replicas(std::size_t expert) const noexcept {
    return std::span{replicas_}.subspan(replica_starts_[expert],
                                        replica_starts_[expert + 1] - replica_starts_[expert]);
  }
  /// Returns the logical expert of physical expert `physical_expert`, or `vacant`.
  [[nodiscard]] std::uint32_t logical(std::size_t physical_expert) const noexcept {
    return logical_[physical_expert];
  }
  /// Returns the index of the rank that holds physical expert `physical_expert`.
  [[nodiscard]] std::uint32_t holder(std::size_t physical_expert) const noexcept {
    return holders_[physical_expert];
  }
  /// Returns the logical experts of `rank` in the order of its physical experts: [count(rank)].
  [[nodiscard]] std::span<const std::uint32_t> held_by(rank_id rank) const noexcept {
    return std::span{logical_}.subspan(first(rank), count(rank));
  }

  /// Returns whether any rank is gone.
  [[nodiscard]] bool has_lost() const noexcept { return !gone_.empty(); }
  /// Returns whether `rank` is gone.
  [[nodiscard]] bool is_gone(rank_id rank) const noexcept {
    return has_lost() && gone_[rank.index()];
  }
  /// Returns a flag for each rank, true if it is gone: [ranks], or empty while no rank is gone.
  [[nodiscard]] const std::vector<bool>& gone() const noexcept { return gone_; }
  /// Returns whether the ranks of all replicas of logical expert `expert` are gone.
  [[nodiscard]] bool is_lost(std::size_t expert) const noexcept {
    return has_lost() && lost_[expert];
  }

  /// Sets which ranks are gone: the ranks r with `gone[r]`, [ranks].
  /// Cost: allocates.
  void lose(const std::vector<bool>& gone);
  /// Sets the experts that `held_by` and `logical` return, for an exchange whose experts are part
  /// of a larger group: [physical experts]. Routing is not affected.
  void rename(std::span<const std::uint32_t> names) noexcept {
    std::ranges::copy(names, logical_.begin());
  }
  /// Takes over the experts of `other`, which has the same number of physical experts at each rank.
  /// Spans that `held_by` has returned then show the new experts.
  void install(expert_map&& other) noexcept;

 private:
  std::vector<std::uint32_t> starts_;          ///< [ranks + 1] physical experts
  std::vector<std::uint32_t> logical_;         ///< logical expert of each physical expert
  std::vector<std::uint32_t> holders_;         ///< rank index of each physical expert
  std::vector<std::uint32_t> replica_starts_;  ///< [experts + 1] into `replicas_`
  std::vector<std::uint32_t> replicas_;        ///< physical experts, by logical expert
  std::vector<bool> gone_;                     ///< [ranks] or empty, as `gone()`
  std::vector<bool> lost_;                     ///< [logical experts] or empty
};

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/expert_map.ipp>  // IWYU pragma: keep
#endif
