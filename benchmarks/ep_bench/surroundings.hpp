// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "ep_bench/options.hpp"
#include "support/pages.hpp"

namespace ep_bench {

/// What the caches of a rank hold before each operation that is timed: ours, the limit's copies and
/// a peer's alike (`--between`).
class surroundings {
 public:
  /// `ranks_per_core`: that share the caches of a core, and its weights.
  surroundings(const options& chosen, std::size_t ranks_per_core)
      : state_{chosen.between},
        weights_{state_ == between::weights
                     ? (chosen.weights_mib << 20U) / std::max<std::size_t>(ranks_per_core, 1)
                     : 0} {
    std::ranges::fill(weights_.all(), std::byte{1});  // Else all pages might be the zero page.
  }

  /// Whether experts read the rows and write outputs between dispatch and combine.
  [[nodiscard]] bool experts_work() const noexcept { return state_ != between::nothing; }
  /// Whether the caches hold what the operation before has left in them, so that a lap of the same
  /// operations has to come before one that is timed.
  [[nodiscard]] bool needs_lap() const noexcept { return state_ != between::weights; }
  /// Reads the weights, if they come between.
  void restore() const noexcept {
    if (state_ == between::weights) weights_.recall();
  }

 private:
  between state_;
  bench::pages<std::byte> weights_;
};

}  // namespace ep_bench
