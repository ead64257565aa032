// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

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

/// The arithmetic of a dispatch, without any communication: checks a rank's input, counts its rows
/// by block, and, given every rank's counts, says where each row lies in the order (block, source
/// rank, token). All its memory is taken at construction.
/// The copies can be sorted by their places only where `way` is the staged road, which needs that.
class dispatch_plan {
 public:
  dispatch_plan(const exchange_config& config, const block_geometry& geometry, rank_id rank,
                std::size_t ranks, road way = road::direct)
      : config_{config},
        geometry_{geometry},
        experts_{config.experts, ranks},
        rank_{rank},
        ranks_{ranks},
        counts_(geometry.blocks.experts()),
        totals_(counts_.size()),
        next_(counts_.size()),
        seen_block_(counts_.size()),
        seen_expert_(config.experts),
        arrivals_(geometry.blocks.count(rank) * (ranks + 1)),
        places_(config.max_tokens * geometry.copies_per_token),
        factors_(places_.size(), 1.0F),
        slots_(config.max_tokens * config.top_k),
        counted_slots_(slots_.size()) {
    owners_.reserve(config.experts);
    for (std::size_t e = 0; e < config.experts; ++e)
      owners_.push_back(static_cast<std::uint32_t>(experts_.owner(e).index()));
    if (way == road::staged) {
      sorted_.resize(places_.size());
      sorted_to_.resize(ranks + 1);
    }
  }

  /// Checks the input, counts its rows and keeps a copy of the routing for `place`.
  /// Returns: the first thing wrong. What the last `place` found stays as it is.
  [[nodiscard]] refusal count(const detail::token_values& tokens, const routing& route) noexcept {
    std::fill(counts_.begin(), counts_.end(), 0U);
    if (const refusal found = detail::check_sizes(config_, tokens, route)) return found;
    counted_tokens_ = tokens.size / config_.hidden;
    std::fill(seen_expert_.begin(), seen_expert_.end(), 0U);
    std::fill(seen_block_.begin(), seen_block_.end(), 0U);
    for (std::size_t t = 0; t < counted_tokens_; ++t) {
      const auto mark = static_cast<std::uint32_t>(t + 1);
      for (std::size_t k = 0; k < config_.top_k; ++k) {
        const std::size_t slot = t * config_.top_k + k;
        const std::int64_t expert = route.expert(slot);
        counted_slots_[slot] = {static_cast<std::int32_t>(expert), 0.0F};
        if (expert == -1) continue;
        const auto at = [&](refusal_reason reason) noexcept {
          return refusal{reason,
                         static_cast<std::uint32_t>(t),
                         static_cast<std::uint32_t>(k),
                         0,
                         expert,
                         static_cast<std::int64_t>(config_.experts)};
        };
        if (expert < 0 || expert >= static_cast<std::int64_t>(config_.experts))
          return at(refusal_reason::expert_out_of_range);
        const auto e = static_cast<std::size_t>(expert);
        if (seen_expert_[e] == mark) return at(refusal_reason::expert_repeated);
        seen_expert_[e] = mark;
        counted_slots_[slot].weight = route.weights()[slot];
        const std::size_t block = block_of(e);
        counts_[block] += seen_block_[block] == mark ? 0 : 1;
        seen_block_[block] = mark;
      }
    }
    return {};
  }

  /// This rank's rows by block, as `count` found them.
  [[nodiscard]] std::span<const std::uint32_t> counts() const noexcept { return counts_; }

  /// Fixes the place of every row that `count` counted, here and at the peers.
  /// `counts_of(rank)` gives the counts of each rank, a range of unsigned numbers, one per block.
  template <class CountsOf>
  void place(CountsOf&& counts_of) noexcept {
    place_blocks(counts_of);
    place_arrivals(counts_of);
    tokens_ = counted_tokens_;
    slots_.swap(counted_slots_);
    for (std::size_t t = 0; t < tokens_; ++t)
      geometry_.by_rank ? place_by_rank(t) : place_by_expert(t);
  }

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
  void sort_copies() noexcept {
    // A counting sort: blocks are dealt out in the order of ranks, and the rows of one go by token.
    // From here on, next_[b] is where the next copy for block b goes in the sorted order.
    std::uint32_t before = 0;
    std::size_t b = 0;
    for (const rank_id owner : all_ranks{ranks_}) {
      sorted_to_[owner.index()] = before;
      for (const std::size_t end = b + geometry_.blocks.count(owner); b < end; ++b) {
        next_[b] = before;
        before += counts_[b];
      }
    }
    sorted_to_[ranks_] = before;
    for (std::size_t c = 0; c < tokens_ * geometry_.copies_per_token; ++c) {
      const row_place& place = places_[c];
      if (!place.sent()) continue;
      const auto block =
          geometry_.by_rank ? place.rank : static_cast<std::uint32_t>(slots_[c].expert);
      sorted_[next_[block]++] = static_cast<copy_number>(c);
    }
  }
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
  /// last: [ranks + 1].
  [[nodiscard]] std::span<const std::uint32_t> arrivals(std::size_t local_block) const noexcept {
    return std::span{arrivals_}.subspan(local_block * (ranks_ + 1), ranks_ + 1);
  }
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

  void place_by_expert(std::size_t t) noexcept {
    for (std::size_t s = t * config_.top_k; s < (t + 1) * config_.top_k; ++s) {
      places_[s] = {};
      if (slots_[s].expert == -1) continue;
      const auto e = static_cast<std::size_t>(slots_[s].expert);
      places_[s] = {owners_[e], next_[e]++};
      factors_[s] = slots_[s].weight;
    }
  }

  void place_by_rank(std::size_t t) noexcept {
    std::array<std::uint32_t, max_top_k> ranks;
    std::size_t found = 0;
    for (std::size_t s = t * config_.top_k; s < (t + 1) * config_.top_k; ++s) {
      if (slots_[s].expert == -1) continue;
      const auto e = static_cast<std::size_t>(slots_[s].expert);
      ranks[found++] = owners_[e];
    }
    std::sort(ranks.begin(), ranks.begin() + found);
    const auto end = std::unique(ranks.begin(), ranks.begin() + found);
    row_place* const places = &places_[t * geometry_.copies_per_token];
    std::fill_n(places, geometry_.copies_per_token, row_place{});
    std::transform(ranks.begin(), end, places,
                   [this](std::uint32_t rank) { return row_place{rank, next_[rank]++}; });
  }

  // The loops below go through locals: counts of one byte might alias the members, which would then
  // be read again for every block.

  /// next_[b]: the row, at the rank that holds b, where this rank's first copy for b goes.
  template <class CountsOf>
  void place_blocks(CountsOf&& counts_of) noexcept {
    // First the rows of b from lower ranks in next_, and all rows of b in totals_.
    std::fill(totals_.begin(), totals_.end(), 0U);
    std::uint32_t* const totals = totals_.data();
    std::uint32_t* const next = next_.data();
    const std::size_t blocks = totals_.size();
    for (const rank_id source : all_ranks{ranks_}) {
      const auto* const theirs = counts_of(source).data();
      if (source == rank_) std::copy_n(totals, blocks, next);
      for (std::size_t b = 0; b < blocks; ++b) totals[b] += theirs[b];
    }
    // Then the rows of lower blocks of the same rank.
    const block_geometry geometry = geometry_;
    std::size_t b = 0;
    for (const rank_id owner : all_ranks{ranks_}) {
      std::uint32_t begin = 0;
      for (const std::size_t end = b + geometry.blocks.count(owner); b < end; ++b) {
        next[b] += begin;
        begin = geometry.next_block(begin, totals[b]);
      }
      if (owner == rank_) end_ = begin;
    }
  }

  template <class CountsOf>
  void place_arrivals(CountsOf&& counts_of) noexcept {
    const block_geometry geometry = geometry_;
    const std::size_t first = geometry.blocks.first(rank_);
    const std::size_t local = geometry.blocks.count(rank_);
    const std::size_t width = ranks_ + 1;
    std::uint32_t* const arrivals = arrivals_.data();
    for (const rank_id source : all_ranks{ranks_}) {
      const auto* const theirs = counts_of(source).data() + first;
      for (std::size_t b = 0; b < local; ++b) arrivals[b * width + source.index()] = theirs[b];
    }
    std::uint32_t begin = 0;
    for (std::size_t b = 0; b < local; ++b) {
      std::uint32_t row = begin;
      std::uint32_t* const block = arrivals + b * width;
      for (std::size_t source = 0; source + 1 < width; ++source)
        row += std::exchange(block[source], row);
      block[width - 1] = row;
      begin = geometry.next_block(begin, row - begin);
    }
  }

  exchange_config config_;
  block_geometry geometry_;
  expert_placement experts_;
  rank_id rank_;
  std::size_t ranks_;
  std::size_t tokens_ = 0;
  std::size_t counted_tokens_ = 0;
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
