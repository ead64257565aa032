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
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/plan/check_input.hpp>
#include <peerbus/moe/plan/count_table.hpp>
#include <peerbus/moe/plan/expert_router.hpp>
#include <peerbus/moe/plan/refusal.hpp>
#include <peerbus/moe/routing.hpp>

namespace peerbus::moe {

/// The destination of one copy of a token: a row at the rank that holds its block, or nowhere.
struct row_place {
  /// The `rank` of a copy that is not sent.
  static constexpr std::uint32_t nowhere = ~std::uint32_t{0};

  std::uint32_t rank = nowhere;  ///< the receiver, or `nowhere`
  std::uint32_t row = 0;         ///< number of the row at the receiver, gaps included

  /// Returns whether the copy goes to a rank.
  [[nodiscard]] bool sent() const noexcept { return rank != nowhere; }
};

/// The destinations of the rows that leave this rank. This is the sending half of the arithmetic of
/// a dispatch, without communication. It checks the input of this rank and counts its rows by
/// block. It computes the place of each row in the order (block, source rank, token), from the
/// counts of all ranks unless the layout has slots. Only the constructor allocates.
class send_plan {
 public:
  /// Allocates for `config`. `router` is that of the same configuration and rank, which all batches
  /// of an exchange share.
  send_plan(const exchange_config& config, const block_geometry& geometry,
            std::shared_ptr<const expert_router> router, rank_id rank, std::size_t rank_count);

  /// Sets the largest number of tokens of a rank in the next `count` and `place`, up to that of the
  /// configuration.
  void bound(std::size_t tokens) noexcept {
    config_.max_tokens = tokens;
    geometry_.bound(tokens, ranks_);
  }

  /// Removes the slots and copies of the last `place` whose ranks r have `gone[r]`, [ranks], and
  /// treats the weights as `wanted` says. If `wanted` is `refused`, stops at the first of these
  /// slots and returns its refusal.
  [[nodiscard]] refusal lose(const std::vector<bool>& gone, lost_experts wanted) noexcept;
  /// Sets the treatment of slots whose experts are lost.
  void on_lost(lost_experts wanted) noexcept { lost_ = wanted; }

  /// Checks the input, counts its rows by block and keeps a copy of the routing for `place`. Does
  /// not change the result of the last `place`.
  /// Returns: the first error in the input, if any.
  [[nodiscard]] refusal count(const detail::token_values& tokens, const routing& route) noexcept;

  /// Returns the number of rows of this rank for each block, as the last `count` found them.
  [[nodiscard]] std::span<const std::uint32_t> counts() const noexcept { return counts_; }

  /// Computes the place of every row of the last `count` from the counts of all ranks.
  void place(const count_table& counts) noexcept;
  /// Computes the place of every row of the last `count` in the slots of this rank. Only for
  /// layouts with slots.
  void place_in_slots() noexcept;

  /// Returns the number of rows of all ranks for each block, as the last `place` found them. Empty
  /// in layouts with slots.
  [[nodiscard]] std::span<const std::uint32_t> totals() const noexcept {
    return {totals_.data(), geometry_.has_slots() ? 0 : totals_.size()};
  }

  /// Returns the number of tokens of the last `place`.
  [[nodiscard]] std::size_t tokens() const noexcept { return tokens_; }
  /// Returns the places of the copies of a token: one per slot, or, if rank-major, the token's
  /// ranks in ascending order, then places nowhere.
  [[nodiscard]] std::span<const row_place> places(std::size_t token) const noexcept {
    const std::size_t copies = geometry_.copies_per_token;
    return {places_.data() + token * copies, copies};
  }
  /// Returns the factor of each copy of a token in combine: the weight of its slot, or 1 if
  /// rank-major.
  [[nodiscard]] std::span<const float> factors(std::size_t token) const noexcept {
    const std::size_t copies = geometry_.copies_per_token;
    return {factors_.data() + token * copies, copies};
  }
  /// Calls `visit(k, expert, weight)` for each slot of a token, as `receiver` needs them: `expert`
  /// is the number of the expert among those of `receiver`. Slots of other ranks and empty slots
  /// have expert -1 and weight 0.
  template <class Visit>
  void for_slots(std::size_t token, rank_id receiver, Visit&& visit) const noexcept {
    for (std::size_t k = 0; k < config_.top_k; ++k) {
      const choice& slot = slots_[token * config_.top_k + k];
      const bool is_held =
          slot.expert != -1 &&
          placement().holder(static_cast<std::size_t>(slot.expert)) == receiver.index();
      visit(k, is_held ? slot.expert - static_cast<std::int32_t>(placement().first(receiver)) : -1,
            is_held ? slot.weight : 0.0F);
    }
  }
  /// Writes the slots of a token, as `for_slots` gives them, into two arrays: [top_k] each.
  void describe(std::size_t token, rank_id receiver, std::byte* experts,
                std::byte* weights) const noexcept {
    for_slots(token, receiver, [=](std::size_t k, std::int32_t local, float weight) noexcept {
      std::memcpy(experts + k * sizeof local, &local, sizeof local);
      std::memcpy(weights + k * sizeof weight, &weight, sizeof weight);
    });
  }

  /// Returns the number of slots of a token.
  [[nodiscard]] std::size_t top_k() const noexcept { return config_.top_k; }
  /// Returns whether slot `k` of a token of the last `place` names an expert.
  [[nodiscard]] bool names_expert(std::size_t token, std::size_t k) const noexcept {
    return slots_[token * config_.top_k + k].expert != -1;
  }
  /// Returns the physical expert of slot `k` of a token. The slot must name an expert.
  [[nodiscard]] std::size_t physical_of(std::size_t token, std::size_t k) const noexcept {
    return static_cast<std::size_t>(slots_[token * config_.top_k + k].expert);
  }
  /// Returns the weight of slot `k` of a token of the last `place`.
  [[nodiscard]] float weight_of(std::size_t token, std::size_t k) const noexcept {
    return slots_[token * config_.top_k + k].weight;
  }

  /// Returns the place of copy `copy`, which is numbered token x copies per token + slot.
  [[nodiscard]] const row_place& place_of(std::size_t copy) const noexcept { return places_[copy]; }
  /// Returns the block of copy `copy`, which must be sent.
  [[nodiscard]] std::size_t block_of(std::size_t copy) const noexcept {
    return geometry_.by_rank ? places_[copy].rank : static_cast<std::size_t>(slots_[copy].expert);
  }
  /// Returns the experts that each rank holds.
  [[nodiscard]] const expert_map& placement() const noexcept { return router_->map(); }
  /// Returns the layout in numbers.
  [[nodiscard]] const block_geometry& geometry() const noexcept { return geometry_; }

 private:
  /// One slot of the routing.
  struct choice {
    std::int32_t expert = -1;  ///< physical expert, or -1
    float weight = 0;
  };

  template <class Count>
  [[nodiscard]] static const Count* counts_of(const count_table& counts, rank_id source) noexcept;

  /// Gives every row its place, from `next_` on.
  void place_rows() noexcept;

  void place_by_expert(std::size_t t) noexcept;

  void place_by_rank(std::size_t t) noexcept;

  /// Sets next_[b] to the row of this rank's first copy for block b, at the rank that holds b.
  template <class Count>
  void place_blocks(const count_table& counts) noexcept;

  /// Returns the sum of the weights of the slots that name experts.
  [[nodiscard]] static float weight_of(std::span<const choice> slots) noexcept {
    float sum = 0;
    for (const choice& slot : slots) sum += slot.expert == -1 ? 0.0F : slot.weight;
    return sum;
  }
  /// Makes the weights of the slots add up to `whole` again.
  static void scale_up(std::span<choice> slots, float whole) noexcept;

  exchange_config config_;
  block_geometry geometry_;
  std::shared_ptr<const expert_router> router_;
  rank_id rank_;
  std::size_t ranks_;
  lost_experts lost_ = lost_experts::dropped;
  std::size_t tokens_ = 0;
  std::size_t counted_tokens_ = 0;
  std::vector<std::uint32_t> counts_;
  std::vector<std::uint32_t> totals_;
  std::vector<std::uint32_t> next_;
  std::vector<std::uint32_t> seen_block_;
  std::vector<std::uint32_t> seen_expert_;
  std::vector<std::uint64_t> token_ranks_;  ///< scratch of `place_by_rank`: a bit for each rank
  std::vector<row_place> places_;
  std::vector<float> factors_;
  std::vector<choice> slots_;
  std::vector<choice> counted_slots_;
};

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/plan/send_plan.ipp>  // IWYU pragma: keep
#endif
