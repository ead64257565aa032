// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/bf16.hpp>

#include "model.hpp"
#include "options.hpp"

namespace moe_text {

/// The output that a token should give. It is computed slowly in one process, in double precision
/// and without any function of the library, from the token as it was before it travelled.
struct expected_row {
  std::vector<double> values;
  /// The largest allowed distance from `values`, by channel. The outputs of the experts and their
  /// sum are each rounded to bf16 (at most 2^-8 of the value), and sums are computed in f32.
  /// Quantisation is not included, because `values` are computed from the quantised token.
  std::vector<double> bounds;
  /// The row that would result if its heaviest expert were lost.
  std::vector<double> without_heaviest;
};

/// Returns the output that `token` should give with the experts `ids` and their `weights`.
expected_row expect(const model& m, wire_codec codec, std::span<const peerbus::bf16> token,
                    std::span<const std::int32_t> ids, std::span<const float> weights);

/// The comparison of a row with the expected row.
struct verdict {
  double error = 0;           ///< the largest of all channels
  double relative_error = 0;  ///< the error divided by the row's largest magnitude
  double share_of_bound = 0;  ///< above 1 the row is wrong; infinite if it holds a NaN

  [[nodiscard]] bool is_right() const { return share_of_bound <= 1; }
};

/// Compares `row` with `expected`, channel by channel.
verdict judge(std::span<const double> row, const expected_row& expected);

}  // namespace moe_text
