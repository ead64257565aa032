// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include <peerbus/moe/config.hpp>

#include "ep_bench/gate.hpp"
#include "ep_bench/options.hpp"

namespace ep_bench {

/// Who sends what where, worked out plainly from everybody's routing, with nothing of the library.
class oracle {
 public:
  /// A copy of a token: its home and the slot of [tokens, top_k] that it fills there.
  struct copy {
    std::size_t source;
    std::size_t slot;
  };
  /// A row of a rank, rank-major: the token, and the number of the rank among the token's; where
  /// rows are relayed, among those of its group.
  struct token_row {
    std::size_t source;
    std::size_t token;
    std::size_t copy;
  };
  /// A row that a rank sends: the copy `copy` of `token` becomes row `row` of rank `rank`.
  struct sent_row {
    std::size_t token;
    std::size_t copy;
    std::size_t rank;
    std::size_t row;
  };

  oracle(const options& chosen, std::size_t rank, std::size_t ranks)
      : by_rank_{chosen.by_rank()},
        in_slots_{chosen.in_slots()},
        padded_{chosen.layout == "padded"},
        tokens_{chosen.tokens},
        top_k_{chosen.top_k},
        rank_{rank},
        group_of_{chosen.relayed_among},
        place_of_{places(group_of_, ranks)},
        order_{row_order(group_of_, place_of_)},
        first_expert_(ranks + 1),
        logical_{chosen.physical_to_logical} {
    if (logical_.empty()) {
      logical_.resize(chosen.experts);
      std::iota(logical_.begin(), logical_.end(), 0U);
    }
    for (std::size_t r = 0; r < ranks; ++r)
      first_expert_[r + 1] =
          first_expert_[r] + logical_.size() / ranks + (r < logical_.size() % ranks ? 1 : 0);

    const gate all{chosen, ranks};
    for (std::size_t source = 0; source < ranks; ++source) choices_.push_back(all.choose(source));
    place_choices(chosen.experts);
    rows_of_.resize(logical_.size());
    for (const std::size_t source : order_) {
      const auto& places = choices_[source].places;
      for (std::size_t slot = 0; slot < places.size(); ++slot)
        rows_of_[static_cast<std::size_t>(places[slot])].push_back({source, slot});
    }
  }

  /// The routing of this rank.
  [[nodiscard]] const gate::choice& mine() const noexcept { return choices_[rank_]; }
  [[nodiscard]] const gate::choice& choice_of(std::size_t source) const noexcept {
    return choices_[source];
  }
  /// Experts are physical ones in all that follows. Which logical one one of them is.
  [[nodiscard]] std::size_t logical(std::size_t expert) const noexcept { return logical_[expert]; }
  /// The rows that `expert` gets, in their order.
  [[nodiscard]] const std::vector<copy>& rows_of(std::size_t expert) const noexcept {
    return rows_of_[expert];
  }
  [[nodiscard]] std::size_t ranks() const noexcept { return choices_.size(); }
  [[nodiscard]] std::size_t first_expert(std::size_t rank) const noexcept {
    return first_expert_[rank];
  }
  [[nodiscard]] bool holds(std::size_t rank, std::int32_t expert) const noexcept {
    const auto e = static_cast<std::size_t>(expert);
    return first_expert_[rank] <= e && e < first_expert_[rank + 1];
  }
  [[nodiscard]] std::size_t owner_of(std::int32_t expert) const noexcept {
    const auto after = std::upper_bound(first_expert_.begin(), first_expert_.end(),
                                        static_cast<std::size_t>(expert));
    return static_cast<std::size_t>(after - first_expert_.begin()) - 1;
  }

  /// The tokens of `source`.
  [[nodiscard]] std::size_t tokens_of(std::size_t source) const noexcept {
    return choices_[source].experts.size() / top_k_;
  }
  /// How many rows the experts of `rank` work on: one for each slot of a token that names one.
  [[nodiscard]] std::size_t expert_rows(std::size_t rank) const noexcept {
    std::size_t rows = 0;
    for (std::size_t e = first_expert_[rank]; e < first_expert_[rank + 1]; ++e)
      rows += rows_of_[e].size();
    return rows;
  }

  /// The rows that `rank` gets, rank-major, in their order.
  [[nodiscard]] std::vector<token_row> rows_at(std::size_t rank) const {
    std::vector<token_row> rows;
    for (const std::size_t source : order_)
      for (std::size_t token = 0; token < tokens_of(source); ++token) {
        const auto ranks = ranks_of(source, token);
        const auto here = std::find(ranks.begin(), ranks.end(), rank);
        if (here == ranks.end()) continue;
        const auto is_near = [&](std::size_t other) {
          return group_of_.empty() || group_of_[other] == group_of_[rank];
        };
        const auto before = std::count_if(ranks.begin(), here, is_near);
        rows.push_back({source, token, static_cast<std::size_t>(before)});
      }
    return rows;
  }
  /// What `rows_from` calls the source of the rows of `rank`: the place of the rank that hands them
  /// on, or the rank.
  [[nodiscard]] std::size_t source_of(std::size_t rank) const noexcept { return place_of_[rank]; }
  /// The ranks with experts of a token, in ascending order.
  [[nodiscard]] std::vector<std::size_t> ranks_of(std::size_t source, std::size_t token) const {
    std::vector<std::size_t> ranks;
    for (std::size_t k = 0; k < top_k_; ++k)
      ranks.push_back(owner_of(choices_[source].places[token * top_k_ + k]));
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }

  /// All rows that `source` sends in the layout of the run, by token, then by copy.
  [[nodiscard]] std::vector<sent_row> rows_sent(std::size_t source) const {
    if (by_rank_) return rows_sent_by_rank(source);
    std::vector<sent_row> sent;
    for (std::size_t r = 0; r + 1 < first_expert_.size(); ++r) {
      std::size_t row = 0;
      for (std::size_t e = first_expert_[r]; e < first_expert_[r + 1]; ++e) {
        const std::size_t pair = (e - first_expert_[r]) * choices_.size();
        if (padded_) row = pair * tokens_;
        if (in_slots_) row = (pair + source) * tokens_;
        for (const copy& arriving : rows_of_[e]) {
          if (arriving.source == source)
            sent.push_back({arriving.slot / top_k_, arriving.slot % top_k_, r, row});
          row += in_slots_ && arriving.source != source ? 0 : 1;
        }
      }
    }
    std::sort(sent.begin(), sent.end(), [](const sent_row& a, const sent_row& b) {
      return std::pair{a.token, a.copy} < std::pair{b.token, b.copy};
    });
    return sent;
  }

 private:
  /// Chooses among the replicas of each expert: round robin by token, rank and expert.
  void place_choices(std::size_t experts) {
    std::vector<std::vector<std::int32_t>> replicas(experts);
    for (std::size_t p = 0; p < logical_.size(); ++p)
      if (logical_[p] != peerbus::moe::vacant)
        replicas[logical_[p]].push_back(static_cast<std::int32_t>(p));
    for (std::size_t source = 0; source < choices_.size(); ++source) {
      gate::choice& choice = choices_[source];
      choice.places.reserve(choice.experts.size());
      for (std::size_t slot = 0; slot < choice.experts.size(); ++slot) {
        const auto expert = static_cast<std::size_t>(choice.experts[slot]);
        const auto& of = replicas[expert];
        choice.places.push_back(of[(slot / top_k_ + source + expert) % of.size()]);
      }
    }
  }

  /// `rows_sent` of rank-major layouts. Looks only at the tokens of sources up to `source`, because
  /// one rank may ask for the rows of hundreds.
  [[nodiscard]] std::vector<sent_row> rows_sent_by_rank(std::size_t source) const {
    std::vector<std::size_t> next_row(ranks(), in_slots_ ? source * tokens_ : 0);
    for (std::size_t before = 0; before < source && !in_slots_; ++before)
      for (std::size_t token = 0; token < tokens_of(before); ++token)
        for (const std::size_t rank : ranks_of(before, token)) ++next_row[rank];
    std::vector<sent_row> sent;
    for (std::size_t token = 0; token < tokens_of(source); ++token) {
      std::size_t copies = 0;
      for (const std::size_t rank : ranks_of(source, token))
        sent.push_back({token, copies++, rank, next_row[rank]++});
    }
    return sent;
  }

  /// The place of the rank that hands on the rows of each rank, or each rank itself: [ranks].
  static std::vector<std::size_t> places(const std::vector<std::uint32_t>& group_of,
                                         std::size_t ranks) {
    std::vector<std::size_t> place_of(ranks);
    std::iota(place_of.begin(), place_of.end(), std::size_t{0});
    if (group_of.empty()) return place_of;
    std::vector<std::size_t> size_of(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) place_of[rank] = size_of[group_of[rank]]++;
    std::size_t smallest = ranks;
    for (const std::size_t size : size_of)
      if (size != 0) smallest = std::min(smallest, size);
    for (std::size_t& place : place_of) place %= smallest;
    return place_of;
  }
  /// The ranks in the order in which the rows of an expert lie: by `places`, then by group.
  static std::vector<std::size_t> row_order(const std::vector<std::uint32_t>& group_of,
                                            const std::vector<std::size_t>& place_of) {
    std::vector<std::size_t> order(place_of.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const auto group = [&](std::size_t rank) { return group_of.empty() ? 0 : group_of[rank]; };
      return std::tuple{place_of[a], group(a), a} < std::tuple{place_of[b], group(b), b};
    });
    return order;
  }

  bool by_rank_;
  bool in_slots_;
  bool padded_;
  std::size_t tokens_;
  std::size_t top_k_;
  std::size_t rank_;
  std::vector<std::uint32_t> group_of_;  ///< empty if rows are not relayed
  std::vector<std::size_t> place_of_;
  std::vector<std::size_t> order_;
  std::vector<std::size_t> first_expert_;
  std::vector<std::uint32_t> logical_;
  std::vector<std::vector<copy>> rows_of_;
  std::vector<gate::choice> choices_;
};

}  // namespace ep_bench
