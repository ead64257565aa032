// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/count_table.hpp>
#include <peerbus/moe/detail/check_input.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/layout.hpp>
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

/// Where the rows that leave this rank go: the sending half of a dispatch's arithmetic, without any
/// communication. Checks a rank's input, counts its rows by block, and, given every rank's counts,
/// finds the place of each row in the order (block, source rank, token). All its memory is taken at
/// construction.
class departures {
 public:
  /// `experts` is the map of the same configuration, which all batches of an exchange share.
  departures(const exchange_config& config, const block_geometry& geometry,
             std::shared_ptr<const expert_map> experts, rank_id rank, std::size_t ranks);

  /// Checks the input, counts its rows and keeps a copy of the routing for `place`.
  /// Returns: the first thing wrong. What the last `place` found stays as it is.
  [[nodiscard]] refusal count(const detail::token_values& tokens, const routing& route) noexcept;

  /// This rank's rows by block, as `count` found them.
  [[nodiscard]] std::span<const std::uint32_t> counts() const noexcept { return counts_; }

  /// Finds the place of every row that `count` counted, from what each rank counted.
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
          at.expert != -1 && experts_->holder(static_cast<std::size_t>(at.expert)) == to.index();
      visit(k, there ? at.expert - static_cast<std::int32_t>(experts_->first(to)) : -1,
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

  /// The place of copy number `copy`: token x copies per token + slot.
  [[nodiscard]] const row_place& place_of(std::size_t copy) const noexcept { return places_[copy]; }
  /// The block that a copy which is sent belongs to.
  [[nodiscard]] std::size_t block_of(std::size_t copy) const noexcept {
    return geometry_.by_rank ? places_[copy].rank : static_cast<std::size_t>(slots_[copy].expert);
  }
  [[nodiscard]] const expert_map& placement() const noexcept { return *experts_; }
  [[nodiscard]] const block_geometry& geometry() const noexcept { return geometry_; }

 private:
  struct choice {
    std::int32_t expert = -1;  ///< physical
    float weight = 0;
  };

  template <class Count>
  void place_as(const count_table& counts) noexcept;

  template <class Count>
  [[nodiscard]] static const Count* counts_of(const count_table& counts, rank_id source) noexcept;

  void place_by_expert(std::size_t t) noexcept;

  void place_by_rank(std::size_t t) noexcept;

  /// next_[b]: the row, at the rank that holds b, where this rank's first copy for b goes.
  template <class Count>
  void place_blocks(const count_table& counts) noexcept;

  exchange_config config_;
  block_geometry geometry_;
  std::shared_ptr<const expert_map> experts_;
  rank_id rank_;
  std::size_t ranks_;
  std::size_t tokens_ = 0;
  std::size_t counted_tokens_ = 0;
  std::vector<std::uint32_t> counts_;
  std::vector<std::uint32_t> totals_;
  std::vector<std::uint32_t> next_;
  std::vector<std::uint32_t> seen_block_;
  std::vector<std::uint32_t> seen_expert_;
  std::vector<row_place> places_;
  std::vector<float> factors_;
  std::vector<choice> slots_;
  std::vector<choice> counted_slots_;
};

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/impl/departures.hpp>  // IWYU pragma: keep
#endif
