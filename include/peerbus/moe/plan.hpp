// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/refusal.hpp>
#include <peerbus/moe/routing.hpp>

namespace peerbus::moe {

/// Where one copy of a token goes: a row of the rank that holds its expert.
struct row_place {
  static constexpr std::uint32_t nowhere = ~std::uint32_t{0};

  std::uint32_t rank = nowhere;
  std::uint32_t row = 0;

  [[nodiscard]] bool sent() const noexcept { return rank != nowhere; }
};

/// The arithmetic of a dispatch, without any communication: checks a rank's input, counts its rows
/// by expert, and, given every rank's counts, says where each row lies in the order (expert, source
/// rank, token). All its memory is taken at construction.
class dispatch_plan {
 public:
  dispatch_plan(const exchange_config& config, rank_id rank, std::size_t ranks)
      : config_{config},
        placement_{config.experts, ranks},
        rank_{rank},
        ranks_{ranks},
        counts_(config.experts),
        last_token_(config.experts),
        next_(config.experts),
        arrivals_(placement_.count(rank) * ranks + 1),
        places_(config.max_tokens * config.top_k),
        weights_(config.max_tokens * config.top_k) {}

  /// Checks the input and counts its rows.
  /// Returns: the first thing wrong. The places and weights of the dispatch before stay as they
  /// are.
  [[nodiscard]] refusal count(std::span<const bf16> tokens, const routing& route) noexcept {
    std::fill(counts_.begin(), counts_.end(), 0U);
    if (const refusal found = check_sizes(tokens, route)) return found;
    const std::size_t token_count = tokens.size() / config_.hidden;
    std::fill(last_token_.begin(), last_token_.end(), 0U);
    for (std::size_t t = 0; t < token_count; ++t) {
      for (std::size_t k = 0; k < config_.top_k; ++k) {
        const std::int64_t expert = route.expert(t * config_.top_k + k);
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
        if (last_token_[e] == t + 1) return at(refusal_reason::expert_repeated);
        last_token_[e] = static_cast<std::uint32_t>(t + 1);
        ++counts_[e];
      }
    }
    return {};
  }

  /// This rank's rows by expert, as `count` found them.
  [[nodiscard]] std::span<const std::uint32_t> counts() const noexcept { return counts_; }

  /// Fixes the place of every row, here and at the peers, and keeps the weights for `combine`.
  /// `counts_of(rank)` gives the counts of each rank, as a span of one per expert; `tokens` and
  /// `route` are as `count` accepted them.
  template <class CountsOf>
  void place(std::size_t tokens, const routing& route, CountsOf&& counts_of) noexcept {
    place_sends(counts_of);
    place_arrivals(counts_of);
    tokens_ = tokens;
    for (std::size_t slot = 0; slot < tokens * config_.top_k; ++slot) {
      const std::int64_t expert = route.expert(slot);
      if (expert == -1) {
        places_[slot] = {};
        continue;
      }
      weights_[slot] = route.weights()[slot];
      const auto e = static_cast<std::size_t>(expert);
      places_[slot] = {static_cast<std::uint32_t>(placement_.owner(e).index()), next_[e]++};
    }
  }

  [[nodiscard]] std::size_t tokens() const noexcept { return tokens_; }
  /// The places of a token's copies, by slot.
  [[nodiscard]] std::span<const row_place> places(std::size_t token) const noexcept {
    return std::span{places_}.subspan(token * config_.top_k, config_.top_k);
  }
  [[nodiscard]] std::span<const float> weights(std::size_t token) const noexcept {
    return std::span{weights_}.subspan(token * config_.top_k, config_.top_k);
  }
  /// First rows of the blocks that arrive here, [local experts][source ranks] and the end.
  [[nodiscard]] std::span<const std::uint32_t> arrivals() const noexcept { return arrivals_; }
  [[nodiscard]] const expert_placement& placement() const noexcept { return placement_; }

 private:
  [[nodiscard]] refusal check_sizes(std::span<const bf16> tokens,
                                    const routing& route) const noexcept {
    const auto wrong = [](refusal_reason reason, std::size_t given, std::size_t expected) noexcept {
      return refusal{
          reason, 0, 0, 0, static_cast<std::int64_t>(given), static_cast<std::int64_t>(expected)};
    };
    if (tokens.data() == nullptr && !tokens.empty())
      return wrong(refusal_reason::null_tokens, tokens.size(), 0);
    if (tokens.size() % config_.hidden != 0)
      return wrong(refusal_reason::tokens_not_rows, tokens.size(), config_.hidden);
    const std::size_t count = tokens.size() / config_.hidden;
    if (count > config_.max_tokens)
      return wrong(refusal_reason::too_many_tokens, count, config_.max_tokens);
    const std::size_t slots = count * config_.top_k;
    if (route.size() != slots) return wrong(refusal_reason::experts_size, route.size(), slots);
    if (route.null()) return wrong(refusal_reason::null_experts, route.size(), 0);
    if (route.weights().size() != slots)
      return wrong(refusal_reason::weights_size, route.weights().size(), slots);
    if (route.weights().data() == nullptr && slots != 0)
      return wrong(refusal_reason::null_weights, slots, 0);
    return {};
  }

  /// next_[e]: the row, at the rank that holds e, where this rank's first copy for e goes.
  template <class CountsOf>
  void place_sends(CountsOf&& counts_of) noexcept {
    // First the rows of e from lower ranks in next_, and all rows of e in last_token_ (free now).
    std::fill(next_.begin(), next_.end(), 0U);
    auto& totals = last_token_;
    std::fill(totals.begin(), totals.end(), 0U);
    for (const rank_id source : all_ranks{ranks_}) {
      const std::span<const std::uint32_t> theirs = counts_of(source);
      if (source == rank_) std::copy(totals.begin(), totals.end(), next_.begin());
      for (std::size_t e = 0; e < config_.experts; ++e) totals[e] += theirs[e];
    }
    // Then the rows of lower experts of the same rank.
    for (const rank_id owner : all_ranks{ranks_}) {
      std::uint32_t before = 0;
      const std::size_t first = placement_.first(owner);
      for (std::size_t e = first; e < first + placement_.count(owner); ++e) {
        next_[e] += before;
        before += totals[e];
      }
    }
  }

  template <class CountsOf>
  void place_arrivals(CountsOf&& counts_of) noexcept {
    const std::size_t first = placement_.first(rank_);
    const std::size_t local = placement_.count(rank_);
    for (const rank_id source : all_ranks{ranks_}) {
      const std::span<const std::uint32_t> theirs = counts_of(source);
      for (std::size_t e = 0; e < local; ++e)
        arrivals_[e * ranks_ + source.index()] = theirs[first + e];
    }
    std::uint32_t row = 0;
    for (auto& entry : arrivals_) {
      const std::uint32_t here = entry;
      entry = row;
      row += here;
    }
  }

  exchange_config config_;
  expert_placement placement_;
  rank_id rank_;
  std::size_t ranks_;
  std::size_t tokens_ = 0;
  std::vector<std::uint32_t> counts_;
  std::vector<std::uint32_t> last_token_;
  std::vector<std::uint32_t> next_;
  std::vector<std::uint32_t> arrivals_;
  std::vector<row_place> places_;
  std::vector<float> weights_;
};

}  // namespace peerbus::moe
