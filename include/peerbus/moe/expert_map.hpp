// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>

namespace peerbus::moe {

/// The experts that each rank holds. *Physical* experts are numbered through the ranks, as
/// `expert_placement` deals them out. Each physical expert is one *logical* expert, and `routing`
/// contains logical experts. The two terms come from DeepSeek's load balancer, EPLB.
class expert_map {
 public:
  /// Makes the map from `config.physical_to_logical`, which has been checked.
  expert_map(const exchange_config& config, std::size_t rank_count);

  /// Returns the number of experts that `rank` holds.
  [[nodiscard]] std::size_t count(rank_id rank) const noexcept { return dealt_.count(rank); }
  /// Returns the first physical expert of `rank`, even if the rank holds none.
  [[nodiscard]] std::size_t first(rank_id rank) const noexcept { return dealt_.first(rank); }
  /// Returns the rank that holds logical expert `expert`.
  [[nodiscard]] rank_id owner(std::size_t expert) const noexcept {
    return rank_id{holder(physical(expert))};
  }
  /// Returns the physical expert of logical expert `expert`.
  [[nodiscard]] std::uint32_t physical(std::size_t expert) const noexcept {
    return physical_[expert];
  }
  /// Returns the logical expert of physical expert `physical_expert`.
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
  /// Returns the number of experts that routing may name: logical experts from 0 on.
  [[nodiscard]] std::size_t routable() const noexcept { return routable_; }

  /// Returns whether a rank that holds experts is gone.
  [[nodiscard]] bool has_lost() const noexcept { return !lost_.empty(); }
  /// Returns whether the rank that holds physical expert `physical_expert` is gone.
  [[nodiscard]] bool is_lost(std::size_t physical_expert) const noexcept {
    return has_lost() && lost_[holder(physical_expert)];
  }

  /// Takes the experts of the ranks for lost that are `gone`: [ranks].
  /// Cost: allocates.
  void lose(const std::vector<bool>& gone) { lost_ = gone; }
  /// Lets routing name only the first `routable` logical experts. The others are places that no
  /// expert has.
  void limit(std::size_t routable) noexcept { routable_ = routable; }
  /// Sets the experts that `held_by` returns, for an exchange whose experts are part of a larger
  /// group: [experts]. Routing is not affected.
  void rename(std::span<const std::uint32_t> names) noexcept {
    std::ranges::copy(names, logical_.begin());
  }

 private:
  expert_placement dealt_;
  std::size_t routable_;
  std::vector<std::uint32_t> logical_;   ///< of each physical expert
  std::vector<std::uint32_t> physical_;  ///< of each logical expert
  std::vector<std::uint32_t> holders_;   ///< of each physical expert; saves a division per slot
  std::vector<bool> lost_;               ///< of each rank; empty while all are there
};

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/expert_map.ipp>  // IWYU pragma: keep
#endif
