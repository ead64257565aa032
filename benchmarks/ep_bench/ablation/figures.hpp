// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "ep_bench/ablation/steps.hpp"
#include "support/statistics.hpp"

namespace ep_bench {

/// The statistics of one step; `result` holds samples.
struct step_figures {
  bench::statistics dispatch;
  bench::statistics combine;
  bench::statistics sum;

  [[nodiscard]] static step_figures of(const ablation_outcome& result, std::size_t step) {
    const auto in = [&](ablation_series which) {
      return bench::summarise(result.samples[index(step, which)]);
    };
    return {in(ablation_series::dispatch), in(ablation_series::combine), in(ablation_series::sum)};
  }
};

/// How far the middle eight tenths of the samples lie apart, in parts of the median.
inline double spread(const bench::statistics& time) noexcept {
  return (time.p90 - time.p10) / time.p50;
}

inline double times_faster(const bench::statistics& than, const bench::statistics& time) noexcept {
  return than.p50 / time.p50;
}

inline constexpr const char* what_ablation_checks =
    "bitwise against a plain reference, before and after timing, in every step: every received row "
    "with its scale, its expert and its order; every combined element, by fma in slot order";

}  // namespace ep_bench
