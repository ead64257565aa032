// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace moe_text {

/// A summary of the durations of all rounds, in microseconds.
struct duration_summary {
  double median = 0;
  double slowest = 0;

  static duration_summary of(std::vector<double> samples) {
    if (samples.empty()) return {};
    std::sort(samples.begin(), samples.end());
    return {samples[samples.size() / 2], samples.back()};
  }
};

/// The results that a rank sends to rank 0 at the end. They cross between processes as bytes.
struct rank_statistics {
  std::uint64_t tokens = 0;
  std::uint64_t rows = 0;
  std::uint64_t wrong_rows = 0;
  /// The number of rows that passed although their heaviest expert was left out. Such a comparison
  /// could not fail.
  std::uint64_t missed_faults = 0;
  std::uint64_t first_wrong_word = 0;
  double largest_error = 0;
  double largest_relative_error = 0;
  double largest_share_of_bound = 0;
  duration_summary dispatch;
  duration_summary combine;
};

}  // namespace moe_text
