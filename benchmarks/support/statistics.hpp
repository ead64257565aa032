// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace bench {

struct statistics {
  double min = 0;
  double p10 = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  double max = 0;
};

/// Nearest-rank percentiles: each is one of the samples, of which there is at least one.
inline statistics summarise(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double fraction) {
    const auto rank =
        static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(samples.size())));
    return samples[std::min(samples.size(), std::max<std::size_t>(rank, 1)) - 1];
  };
  return {samples.front(), at(0.10), at(0.50), at(0.90), at(0.99), samples.back()};
}

/// Returns the middle one of the samples, or the mean of the two middle ones. There is at least
/// one.
inline double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const double below = samples[(samples.size() - 1) / 2];
  return below + (samples[samples.size() / 2] - below) / 2;
}

}  // namespace bench
