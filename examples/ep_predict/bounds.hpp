// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "platform_file.hpp"
#include "prediction.hpp"

namespace ep_predict {

/// The share of a time that goes when one kind of cost is zero.
struct bound {
  std::string cost;     ///< "start-up", "port", "latency", "own work" or "skew"
  double dispatch = 0;  ///< of the median of `times`, from 0 to 1
  double combine = 0;   ///< likewise
};

/// Predicts `batch` again with each kind of cost at zero, and compares with `all`, the prediction
/// with all costs. Costs overlap, so shares need not add up to 1.
/// Cost: five simulations.
/// Throws: as `predict`.
[[nodiscard]] std::vector<bound> bounds_of(const load& batch, const platform_file& given,
                                           const prediction& all);

/// The rows of a token that leave its group of ranks, on average.
struct leaving_rows {
  double per_expert = 0;  ///< with a row for each of its experts
  double per_rank = 0;    ///< with a row for each rank of these
  double per_group = 0;   ///< with a row for each group of these, as a relay sends them
};

/// Returns the rows of a token that leave its group of `group` ranks, by even routing.
[[nodiscard]] leaving_rows rows_that_leave(const load& batch, std::size_t group);

/// Returns lines of advice: the fastest layout and its memory, whether two levels would be faster,
/// how few tokens a rank needs for nearly as many a second, and how much of the exchange two
/// batches in flight hide. `experts_us`: the time that experts compute for a batch; 0: as long as
/// its dispatch and combine.
/// Cost: a simulation for each other layout, two of two levels, two of layers, and some of fewer
/// tokens.
/// Throws: as `predict`.
[[nodiscard]] std::vector<std::string> advice_for(const load& batch, const platform_file& given,
                                                  const prediction& all, double experts_us);

}  // namespace ep_predict
