// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/bf16.hpp>

#include "model.hpp"
#include "options.hpp"

namespace moe_text {

/// What a token should become, computed slowly in one process, in double precision and without
/// any function of the library, from the token as it was before it travelled.
struct expected_row {
  std::vector<double> values;
  /// How far from `values` each channel may be: the experts' outputs and their sum are each rounded
  /// to bf16 (2^-8 of the value at most), and sums are taken in f32. Quantisation is not in it, as
  /// `values` are computed from the quantised token.
  std::vector<double> bounds;
  /// The row as it would be if its heaviest expert were lost.
  std::vector<double> without_heaviest;
};

expected_row expect(const model& m, wire_codec codec, std::span<const peerbus::bf16> token,
                    std::span<const std::int32_t> ids, std::span<const float> weights);

/// How a row compares with what was expected.
struct verdict {
  double error = 0;           ///< the largest of all channels
  double relative_error = 0;  ///< the same, divided by the row's largest magnitude
  double share_of_bound = 0;  ///< above 1 the row is wrong; infinite if it holds a NaN

  [[nodiscard]] bool right() const { return share_of_bound <= 1; }
};

verdict judge(std::span<const double> row, const expected_row& expected);

}  // namespace moe_text
