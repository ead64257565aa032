// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>

namespace ep_bench {

/// A rank's rows in the order in which a basic flow sends them: by expert, thus by destination,
/// then by token.
class routed_order {
 public:
  routed_order(std::size_t experts, std::size_t ranks, std::size_t slots)
      : placement_{experts, ranks},
        counts_(experts),
        starts_(experts + 1),
        next_(experts),
        positions_(slots) {}

  /// `experts` by slot, each a number of an expert.
  void sort(std::span<const std::int32_t> experts) noexcept {
    for (auto& count : counts_) count = 0;
    for (const std::int32_t expert : experts) ++counts_[static_cast<std::size_t>(expert)];
    for (std::size_t e = 0; e < counts_.size(); ++e) {
      next_[e] = starts_[e];
      starts_[e + 1] = starts_[e] + counts_[e];
    }
    for (std::size_t slot = 0; slot < experts.size(); ++slot)
      positions_[slot] = next_[static_cast<std::size_t>(experts[slot])]++;
  }

  /// How many rows go to each of the experts of `rank`.
  [[nodiscard]] std::span<const std::uint32_t> counts(std::size_t rank) const noexcept {
    const peerbus::rank_id owner{rank};
    return std::span{counts_}.subspan(placement_.first(owner), placement_.count(owner));
  }
  /// The position of the first row for `rank`.
  [[nodiscard]] std::size_t first(std::size_t rank) const noexcept {
    return starts_[placement_.first(peerbus::rank_id{rank})];
  }
  [[nodiscard]] std::size_t rows(std::size_t rank) const noexcept {
    const peerbus::rank_id owner{rank};
    return starts_[placement_.first(owner) + placement_.count(owner)] - first(rank);
  }
  [[nodiscard]] std::size_t position(std::size_t slot) const noexcept { return positions_[slot]; }
  [[nodiscard]] std::size_t owner(std::int32_t expert) const noexcept {
    return placement_.owner(static_cast<std::size_t>(expert)).index();
  }

 private:
  peerbus::moe::expert_placement placement_;
  std::vector<std::uint32_t> counts_;
  std::vector<std::uint32_t> starts_;
  std::vector<std::uint32_t> next_;
  std::vector<std::uint32_t> positions_;
};

}  // namespace ep_bench
