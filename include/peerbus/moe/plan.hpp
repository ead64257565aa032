// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/detail/check_input.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/refusal.hpp>
#include <peerbus/moe/routing.hpp>

namespace peerbus::moe {

/// Where one copy of a token goes: a row of the rank that holds its block.
struct row_place {
  static constexpr std::uint32_t nowhere = ~std::uint32_t{0};

  std::uint32_t rank = nowhere;
  std::uint32_t row = 0;

  [[nodiscard]] bool sent() const noexcept { return rank != nowhere; }
};

/// The counts of all ranks as they lie in memory: for each rank one unsigned number per block, of
/// `count_bytes` (1, 2 or 4) bytes each. The numbers of a rank begin `stride` bytes after those of
/// the rank before it.
struct count_table {
  const std::byte* first;
  std::size_t stride;
  std::size_t count_bytes;
};

/// The arithmetic of a dispatch, without any communication: checks a rank's input, counts its rows
/// by block, and, given every rank's counts, says where each row lies in the order (block, source
/// rank, token). All its memory is taken at construction.
/// The copies can be sorted by their places only where `way` is the staged road, which needs that.
class dispatch_plan {
 public:
  dispatch_plan(const exchange_config& config, const block_geometry& geometry, rank_id rank,
                std::size_t ranks, road way = road::direct);

  /// Checks the input, counts its rows and keeps a copy of the routing for `place`.
  /// Returns: the first thing wrong. What the last `place` found stays as it is.
  [[nodiscard]] refusal count(const detail::token_values& tokens, const routing& route) noexcept;

  /// This rank's rows by block, as `count` found them.
  [[nodiscard]] std::span<const std::uint32_t> counts() const noexcept { return counts_; }

  /// Fixes the place of every row that `count` counted, here and at the peers, from what each rank
  /// counted.
  void place(const count_table& counts) noexcept;

  [[nodiscard]] std::size_t tokens() const noexcept { return tokens_; }
  /// The places of a token's copies: by slot, or, rank-major, by rank, the rest nowhere.
  [[nodiscard]] std::span<const row_place> places(std::size_t token) const noexcept {
    const std::size_t copies = geometry_.copies_per_token;
    return std::span{places_}.subspan(token * copies, copies);
  }
  /// What combine multiplies the copies' outputs by: the weights of the slots, or, rank-major, 1.
  [[nodiscard]] std::span<const float> factors(std::size_t token) const noexcept {
    const std::size_t copies = geometry_.copies_per_token;
    return std::span{factors_}.subspan(token * copies, copies);
  }
  /// A token's slots as the rank that gets the copy wants them: `visit(k, expert, weight)` with the
  /// number of the expert among its own, -1 for slots of other ranks; the weight, 0 there.
  template <class Visit>
  void for_slots(std::size_t token, rank_id to, Visit&& visit) const noexcept {
    for (std::size_t k = 0; k < config_.top_k; ++k) {
      const choice& at = slots_[token * config_.top_k + k];
      const bool there =
          at.expert != -1 && owners_[static_cast<std::size_t>(at.expert)] == to.index();
      visit(k, there ? at.expert - static_cast<std::int32_t>(experts_.first(to)) : -1,
            there ? at.weight : 0.0F);
    }
  }
  /// The same as arrays, [top_k] each.
  void describe(std::size_t token, rank_id to, std::byte* experts,
                std::byte* weights) const noexcept {
    for_slots(token, to, [=](std::size_t k, std::int32_t local, float weight) noexcept {
      std::memcpy(experts + k * sizeof local, &local, sizeof local);
      std::memcpy(weights + k * sizeof weight, &weight, sizeof weight);
    });
  }

  /// A copy of a token, as its number among all places: token x copies per token + slot.
  using copy_number = std::uint32_t;

  /// Puts the copies that `place` found in the order of their places, by rank, then by row. For
  /// plans of the staged road, after each `place`.
  void sort_copies() noexcept;
  /// All copies that are sent, as `sort_copies` left them.
  [[nodiscard]] std::span<const copy_number> sorted() const noexcept {
    return std::span{sorted_}.first(sorted_to_.back());
  }
  /// The part of `sorted()` that goes to one rank.
  [[nodiscard]] lane::range sorted_to(rank_id to) const noexcept {
    return {sorted_to_[to.index()], sorted_to_[to.index() + 1]};
  }
  /// The place of a copy.
  [[nodiscard]] const row_place& place_of(copy_number copy) const noexcept { return places_[copy]; }

  /// First rows of what came from each source rank to a block of this rank, and the row after the
  /// last: [ranks + 1]. The number behind them is the first row of the next block, or `end()`.
  [[nodiscard]] std::span<const std::uint32_t> arrivals(std::size_t local_block) const noexcept {
    return std::span{arrivals_}.subspan(local_block * (ranks_ + 1), ranks_ + 1);
  }
  /// Number of rows that arrive at this rank, without gaps.
  [[nodiscard]] std::size_t arrived() const noexcept { return arrived_; }
  /// Where the rows of this rank's last block end, gaps included.
  [[nodiscard]] std::uint32_t end() const noexcept { return end_; }
  [[nodiscard]] const expert_placement& placement() const noexcept { return experts_; }
  [[nodiscard]] const block_geometry& geometry() const noexcept { return geometry_; }

 private:
  struct choice {
    std::int32_t expert = -1;
    float weight = 0;
  };

  [[nodiscard]] std::size_t block_of(std::size_t expert) const noexcept {
    return geometry_.by_rank ? owners_[expert] : expert;
  }

  template <class Count>
  void place_as(const count_table& counts) noexcept;

  template <class Count>
  [[nodiscard]] static const Count* counts_of(const count_table& counts, rank_id source) noexcept;

  void place_by_expert(std::size_t t) noexcept;

  void place_by_rank(std::size_t t) noexcept;

  /// next_[b]: the row, at the rank that holds b, where this rank's first copy for b goes.
  template <class Count>
  void place_blocks(const count_table& counts) noexcept;

  template <class Count>
  void place_arrivals(const count_table& counts) noexcept;

  exchange_config config_;
  block_geometry geometry_;
  expert_placement experts_;
  rank_id rank_;
  std::size_t ranks_;
  std::size_t tokens_ = 0;
  std::size_t counted_tokens_ = 0;
  std::size_t arrived_ = 0;
  std::uint32_t end_ = 0;
  std::vector<std::uint32_t> owners_;  ///< of each expert; spares a division per slot
  std::vector<std::uint32_t> counts_;
  std::vector<std::uint32_t> totals_;
  std::vector<std::uint32_t> next_;
  std::vector<std::uint32_t> seen_block_;
  std::vector<std::uint32_t> seen_expert_;
  std::vector<std::uint32_t> arrivals_;
  std::vector<row_place> places_;
  std::vector<float> factors_;
  std::vector<choice> slots_;
  std::vector<choice> counted_slots_;
  std::vector<copy_number> sorted_;       ///< empty on the direct road
  std::vector<std::uint32_t> sorted_to_;  ///< [ranks + 1]: where the copies for each rank begin
};

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/impl/plan.hpp>  // IWYU pragma: keep
#endif
