// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>
#include <utility>

#include <peerbus/core/placed.hpp>
#include <peerbus/moe/plan/send_plan.hpp>

namespace peerbus::moe {

PEERBUS_INLINE send_plan::send_plan(const exchange_config& config, const block_geometry& geometry,
                                    std::shared_ptr<const expert_router> router, rank_id rank,
                                    std::size_t rank_count)
    : config_{config},
      geometry_{geometry},
      router_{std::move(router)},
      rank_{rank},
      ranks_{rank_count},
      counts_(geometry.blocks.experts()),
      totals_(counts_.size()),
      next_(counts_.size()),
      seen_block_(counts_.size()),
      seen_expert_(config.experts),
      token_ranks_(geometry.by_rank ? (rank_count + 63) / 64 : 0),
      places_(config.max_tokens * geometry.copies_per_token),
      factors_(places_.size(), 1.0F),
      slots_(config.max_tokens * config.top_k),
      counted_slots_(slots_.size()) {
  // The caller may free their memory after construction.
  config_.physical_to_logical = config_.experts_of_rank = {};
  config_.replicas = {};
}

PEERBUS_INLINE refusal send_plan::count(const detail::token_values& tokens,
                                        const routing& route) noexcept {
  std::fill(counts_.begin(), counts_.end(), 0U);
  if (const refusal found = detail::check_sizes(config_, tokens, route)) return found;
  counted_tokens_ = tokens.size / config_.hidden;
  std::fill(seen_expert_.begin(), seen_expert_.end(), 0U);
  std::fill(seen_block_.begin(), seen_block_.end(), 0U);
  const expert_map& experts = router_->map();
  const replica_cycles& cycles = router_->cycles();
  const bool may_be_lost = experts.has_lost();
  const bool take_turns = cycles.take_turns();
  const auto routable = static_cast<std::int64_t>(experts.experts());
  for (std::size_t t = 0; t < counted_tokens_; ++t) {
    const auto mark = static_cast<std::uint32_t>(t + 1);
    float whole = 0;
    for (std::size_t k = 0; k < config_.top_k; ++k) {
      const std::size_t slot = t * config_.top_k + k;
      const std::int64_t expert = route.expert(slot);
      counted_slots_[slot] = {};
      const bool is_outside = expert < 0 || expert >= routable;
      if (expert == -1 || (is_outside && config_.other_ids == ids_outside::skipped)) continue;
      const auto refuse_slot = [&](refusal_reason reason) noexcept {
        return refusal{
            reason,  static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(k), 0, expert,
            routable};
      };
      if (is_outside) return refuse_slot(refusal_reason::expert_out_of_range);
      const auto e = static_cast<std::size_t>(expert);
      if (seen_expert_[e] == mark) return refuse_slot(refusal_reason::expert_repeated);
      seen_expert_[e] = mark;
      if (may_be_lost) {
        whole += route.weights()[slot];
        if (experts.is_lost(e)) {
          if (lost_ == lost_experts::refused) return refuse_slot(refusal_reason::expert_lost);
          continue;
        }
      }
      const std::uint32_t physical = take_turns ? cycles.of(e, t) : cycles.first(e);
      counted_slots_[slot] = {static_cast<std::int32_t>(physical), route.weights()[slot]};
      const std::size_t block = geometry_.by_rank ? experts.holder(physical) : physical;
      counts_[block] += seen_block_[block] == mark ? 0U : 1U;
      seen_block_[block] = mark;
    }
    if (may_be_lost && lost_ == lost_experts::renormalised)
      scale_up({counted_slots_.data() + t * config_.top_k, config_.top_k}, whole);
  }
  return {};
}

PEERBUS_INLINE void send_plan::scale_up(std::span<choice> slots, float whole) noexcept {
  const float left = weight_of(slots);
  if (left == whole || left == 0) return;
  for (choice& slot : slots) slot.weight *= whole / left;
}

PEERBUS_INLINE refusal send_plan::lose(const std::vector<bool>& gone,
                                       lost_experts wanted) noexcept {
  const std::size_t copies = geometry_.copies_per_token;
  for (std::size_t t = 0; t < tokens_; ++t) {
    const std::span<choice> slots{slots_.data() + t * config_.top_k, config_.top_k};
    const float whole = weight_of(slots);
    for (std::size_t k = 0; k < slots.size(); ++k) {
      choice& slot = slots[k];
      if (slot.expert == -1 || !gone[placement().holder(static_cast<std::size_t>(slot.expert))])
        continue;
      if (wanted == lost_experts::refused)
        return {refusal_reason::expert_lost,
                static_cast<std::uint32_t>(t),
                static_cast<std::uint32_t>(k),
                0,
                placement().logical(static_cast<std::size_t>(slot.expert)),
                0};
      slot = {};
    }
    if (wanted == lost_experts::renormalised) scale_up(slots, whole);
    for (std::size_t c = t * copies; c < (t + 1) * copies; ++c) {
      if (places_[c].sent() && gone[places_[c].rank]) places_[c] = {};
      if (!geometry_.by_rank) factors_[c] = slots_[c].weight;
    }
  }
  return {};
}

template <class Count>
const Count* send_plan::counts_of(const count_table& counts, rank_id source) noexcept {
  return peerbus::detail::placed<Count>(counts.first + source.index() * counts.stride);
}

template <class Count>
void send_plan::place_blocks(const count_table& counts) noexcept {
  // First next_[b] gets the rows of block b from lower ranks, and totals_[b] all rows of b. Several
  // blocks are added up at a time, so that their sums stay in registers. The members are copied to
  // locals, because counts of one byte may alias the members. The compiler would then read the
  // members again for every block.
  static constexpr std::size_t width = 8;
  std::uint32_t* const totals = totals_.data();
  std::uint32_t* const next = next_.data();
  const std::size_t blocks = totals_.size();
  const rank_id own_rank = rank_;
  const auto add_up = [&](std::size_t b, auto count) noexcept {
    std::array<std::uint32_t, width> sums{};
    for (const rank_id source : all_ranks{ranks_}) {
      const Count* const source_counts = counts_of<Count>(counts, source) + b;
      if (source == own_rank) std::copy_n(sums.begin(), count(), next + b);
      for (std::size_t i = 0; i < count(); ++i) sums[i] += source_counts[i];
    }
    std::copy_n(sums.begin(), count(), totals + b);
  };
  std::size_t b = 0;
  for (; b + width <= blocks; b += width) add_up(b, [] { return width; });
  add_up(b, [&] { return blocks - b; });

  // Then the rows of lower blocks of the same rank are added. Without gaps, blocks without rows are
  // skipped, because no row needs their place.
  const block_geometry geometry = geometry_;
  const bool gapless = geometry.block_rows == 0 && geometry.alignment == 1;
  b = 0;
  for (const rank_id owner : all_ranks{ranks_}) {
    std::uint32_t begin = 0;
    const std::size_t end = b + geometry.blocks.count(owner);
    while (gapless && b < end) {
      const bool whole = b + width <= end;
      if (whole && std::all_of(totals + b, totals + b + width, [](auto n) { return n == 0; })) {
        b += width;
        continue;
      }
      for (const std::size_t stop = whole ? b + width : end; b < stop; begin += totals[b++])
        next[b] += begin;
    }
    for (; b < end; ++b) {
      next[b] += begin;
      begin = geometry.next_block(begin, totals[b]);
    }
  }
}

PEERBUS_INLINE void send_plan::place_rows() noexcept {
  tokens_ = counted_tokens_;
  slots_.swap(counted_slots_);
  for (std::size_t t = 0; t < tokens_; ++t)
    geometry_.by_rank ? place_by_rank(t) : place_by_expert(t);
}

PEERBUS_INLINE void send_plan::place(const count_table& counts) noexcept {
  with_count_type(counts.count_bytes, [&]<class Count>(std::type_identity<Count>) noexcept {
    this->place_blocks<Count>(counts);
  });
  place_rows();
}

PEERBUS_INLINE void send_plan::place_in_slots() noexcept {
  std::size_t b = 0;
  for (const rank_id owner : all_ranks{ranks_})
    for (std::size_t local = 0; local < geometry_.blocks.count(owner); ++local)
      next_[b++] = geometry_.first_slot(local, rank_);
  place_rows();
}

PEERBUS_INLINE void send_plan::place_by_expert(std::size_t t) noexcept {
  for (std::size_t s = t * config_.top_k; s < (t + 1) * config_.top_k; ++s) {
    places_[s] = {};
    if (slots_[s].expert == -1) continue;
    const auto e = static_cast<std::size_t>(slots_[s].expert);
    places_[s] = {placement().holder(e), next_[e]++};
    factors_[s] = slots_[s].weight;
  }
}

PEERBUS_INLINE void send_plan::place_by_rank(std::size_t t) noexcept {
  // The ranks of the token are collected as bits, which need no sorting. A sort would branch on the
  // routing, which no CPU can predict.
  for (std::size_t s = t * config_.top_k; s < (t + 1) * config_.top_k; ++s) {
    if (slots_[s].expert == -1) continue;
    const std::uint32_t holder = placement().holder(static_cast<std::size_t>(slots_[s].expert));
    token_ranks_[holder / 64] |= std::uint64_t{1} << holder % 64;
  }
  row_place* place = &places_[t * geometry_.copies_per_token];
  std::fill_n(place, geometry_.copies_per_token, row_place{});
  for (std::size_t word = 0; word < token_ranks_.size(); ++word)
    for (std::uint64_t bits = std::exchange(token_ranks_[word], 0); bits != 0; bits &= bits - 1) {
      const auto rank = static_cast<std::uint32_t>(word * 64) +
                        static_cast<std::uint32_t>(std::countr_zero(bits));
      *place++ = {rank, next_[rank]++};
    }
}

}  // namespace peerbus::moe
