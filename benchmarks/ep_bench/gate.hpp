// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "ep_bench/collectivex.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/random.hpp"
#include "ep_bench/routing_pattern.hpp"

namespace ep_bench {

/// Chooses each token's experts, distinct, and their weights. A function of the options and the
/// rank only, so that every rank knows what all others send.
class gate {
 public:
  struct choice {
    std::vector<std::int32_t> experts;  ///< [tokens of the rank, top_k]
    std::vector<float> weights;         ///< the same, in [1/16, 1), or CollectiveX's
    std::vector<std::int32_t> places;   ///< the same: physical experts, which the oracle works out
  };

  gate(const options& chosen, std::size_t rank_count)
      : chosen_{chosen},
        pattern_{chosen.pattern},
        first_rank_{std::max(chosen.top_k, (chosen.experts + rank_count - 1) / rank_count)},
        inverse_popularity_(chosen.experts) {
    // Which experts are popular is random but the same on all ranks, as in a trained model.
    std::vector<std::size_t> order(chosen.experts);
    std::iota(order.begin(), order.end(), std::size_t{0});
    random_sequence random{chosen.seed};
    for (std::size_t i = order.size(); i > 1 && !pattern_.in_order; --i)
      std::swap(order[i - 1], order[random.next() % i]);
    for (std::size_t place = 0; place < order.size(); ++place)
      inverse_popularity_[order[place]] = std::pow(static_cast<double>(place + 1), pattern_.zipf);
  }

  [[nodiscard]] choice choose(std::size_t rank) const {
    const std::size_t tokens = chosen_.tokens_of(rank);
    choice result;
    result.experts.reserve(tokens * chosen_.top_k);
    result.weights.reserve(tokens * chosen_.top_k);
    if (pattern_.of == routing_pattern::kind::collectivex) {
      const collectivex_routing theirs{pattern_.seed, chosen_.experts, chosen_.top_k};
      const std::size_t before = chosen_.tokens_before(rank);
      for (std::size_t t = 0; t < tokens; ++t)
        theirs.append(before + t, result.experts, result.weights);
      return result;
    }
    random_sequence random{mix(chosen_.seed) + rank + 1};
    for (std::size_t t = 0; t < tokens; ++t) {
      if (pattern_.of == routing_pattern::kind::recorded)
        take_recorded(rank, t, result.experts);
      else
        draw(random, result.experts);
      for (std::size_t k = 0; k < chosen_.top_k; ++k)
        result.weights.push_back(static_cast<float>(random.next() % 960 + 64) / 1024.0F);
    }
    return result;
  }

 private:
  /// The time at which an expert rings, and its number.
  using ring = std::pair<double, std::int32_t>;

  /// Draws the experts of a token.
  void draw(random_sequence& random, std::vector<std::int32_t>& to) const {
    // Experts as clocks that ring at rates equal to their popularity: the first to ring are a
    // sample without replacement with just these odds.
    std::vector<ring> rings(chosen_.experts);
    for (std::size_t e = 0; e < rings.size(); ++e)
      rings[e] = {-std::log(random.unit()) * inverse_popularity_[e], static_cast<std::int32_t>(e)};
    if (pattern_.of == routing_pattern::kind::incast) rings.resize(first_rank_);
    if (pattern_.of == routing_pattern::kind::grouped) keep_groups(rings);
    const auto end = rings.begin() + static_cast<std::ptrdiff_t>(chosen_.top_k);
    std::partial_sort(rings.begin(), end, rings.end());
    for (auto first = rings.begin(); first != end; ++first) to.push_back(first->second);
  }

  /// Leaves the experts of those groups in which one rings first.
  void keep_groups(std::vector<ring>& rings) const {
    const std::size_t size = rings.size() / pattern_.groups;
    std::vector<ring> firsts(pattern_.groups);
    for (std::size_t g = 0; g < firsts.size(); ++g)
      firsts[g] = {std::min_element(&rings[g * size], &rings[g * size] + size)->first,
                   static_cast<std::int32_t>(g)};
    std::sort(firsts.begin(), firsts.end());
    std::vector<ring> kept;
    for (std::size_t i = 0; i < pattern_.of_groups; ++i) {
      const ring* const first = &rings[static_cast<std::size_t>(firsts[i].second) * size];
      kept.insert(kept.end(), first, first + size);
    }
    rings = std::move(kept);
  }

  /// Takes token `t` of `rank` from the recording: ranks have its rows one after the other, and
  /// after the last one the first again.
  void take_recorded(std::size_t rank, std::size_t t, std::vector<std::int32_t>& to) const {
    const std::size_t rows = pattern_.ids.size() / chosen_.top_k;
    const std::size_t row = (chosen_.tokens_before(rank) + t) % rows;
    const auto* const first = pattern_.ids.data() + row * chosen_.top_k;
    to.insert(to.end(), first, first + chosen_.top_k);
  }

  options chosen_;
  routing_pattern pattern_;
  std::size_t first_rank_;  ///< experts of the first rank, or as many as a token needs
  std::vector<double> inverse_popularity_;
};

}  // namespace ep_bench
