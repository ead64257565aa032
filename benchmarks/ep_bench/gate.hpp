// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "ep_bench/options.hpp"
#include "ep_bench/random.hpp"

namespace ep_bench {

/// Chooses each token's experts, distinct, and their weights. A function of seed and rank only, so
/// that every rank knows what all others send.
class gate {
 public:
  struct choice {
    std::vector<std::int32_t> experts;  ///< [tokens, top_k]
    std::vector<float> weights;         ///< [tokens, top_k], in [1/16, 1)
  };

  explicit gate(const options& chosen) : chosen_{chosen}, inverse_popularity_(chosen.experts) {
    // Which experts are popular is random but the same on all ranks, as in a trained model.
    std::vector<std::size_t> order(chosen.experts);
    std::iota(order.begin(), order.end(), std::size_t{0});
    random_sequence random{chosen.seed};
    for (std::size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[random.next() % i]);
    for (std::size_t place = 0; place < order.size(); ++place)
      inverse_popularity_[order[place]] = std::pow(static_cast<double>(place + 1), chosen.zipf);
  }

  [[nodiscard]] choice choose(std::size_t rank) const {
    choice result;
    result.experts.reserve(chosen_.tokens * chosen_.top_k);
    result.weights.reserve(chosen_.tokens * chosen_.top_k);
    random_sequence random{mix(chosen_.seed) + rank + 1};
    std::vector<std::pair<double, std::int32_t>> arrivals(chosen_.experts);
    for (std::size_t t = 0; t < chosen_.tokens; ++t) {
      // Experts as clocks that ring at rates equal to their popularity: the first to ring are a
      // sample without replacement with just these odds.
      for (std::size_t e = 0; e < arrivals.size(); ++e)
        arrivals[e] = {-std::log(random.unit()) * inverse_popularity_[e],
                       static_cast<std::int32_t>(e)};
      const auto end = arrivals.begin() + static_cast<std::ptrdiff_t>(chosen_.top_k);
      std::partial_sort(arrivals.begin(), end, arrivals.end());
      for (auto first = arrivals.begin(); first != end; ++first) {
        result.experts.push_back(first->second);
        result.weights.push_back(static_cast<float>(random.next() % 960 + 64) / 1024.0F);
      }
    }
    return result;
  }

 private:
  options chosen_;
  std::vector<double> inverse_popularity_;
};

}  // namespace ep_bench
