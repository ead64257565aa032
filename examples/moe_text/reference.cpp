// SPDX-License-Identifier: MIT
#include "reference.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <peerbus/core/bf16.hpp>

namespace moe_text {

namespace {

float value_of(peerbus::bf16 number) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(number.bits) << 16U);
}

/// Returns the token as its experts should see it.
std::vector<double> after_the_wire(wire_codec codec, std::span<const peerbus::bf16> token) {
  float largest = 0;
  for (const peerbus::bf16 x : token) largest = std::max(largest, std::abs(value_of(x)));
  std::vector<double> seen;
  for (const peerbus::bf16 x : token) {
    float value = value_of(x);
    if (codec == wire_codec::int8 && largest > 0)
      value = std::nearbyint(value * (127.0F / largest)) * (largest / 127.0F);
    seen.push_back(value);
  }
  return seen;
}

std::vector<double> expert_output(const model& m, std::size_t expert,
                                  const std::vector<double>& x) {
  std::vector<double> y(x.size());
  for (std::size_t j = 0; j < model::inner; ++j) {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += m.up_of(expert)[i * model::inner + j] * x[i];
    const double between = sum / (1 + std::exp(-sum));
    for (std::size_t i = 0; i < y.size(); ++i)
      y[i] += m.down_of(expert)[j * y.size() + i] * between;
  }
  return y;
}

}  // namespace

expected_row expect(const model& m, wire_codec codec, std::span<const peerbus::bf16> token,
                    std::span<const std::int32_t> ids, std::span<const float> weights) {
  constexpr double bf16_rounding = 0x1p-8;
  // A bound for f32 sums of up to 16384 terms. Their error is typically the root of the number of
  // terms times 2^-24 of the largest value, which is 2^-17. The bound is larger than that, and
  // still far below the error of a wrong row.
  constexpr double f32_sums = 0x1p-14;

  const std::vector<double> x = after_the_wire(codec, token);
  const std::vector<double> zeros(x.size());
  expected_row row{zeros, zeros, zeros};
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const auto y = expert_output(m, static_cast<std::size_t>(ids[k]), x);
    double largest = 0;
    for (const double value : y) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < x.size(); ++i) {
      row.values[i] += weights[k] * y[i];
      row.bounds[i] += weights[k] * (bf16_rounding * std::abs(y[i]) + f32_sums * largest);
      if (k != 0) row.without_heaviest[i] += weights[k] * y[i];  // Slots are sorted by weight.
    }
  }
  for (std::size_t i = 0; i < x.size(); ++i)
    row.bounds[i] += bf16_rounding * (std::abs(row.values[i]) + row.bounds[i]);
  return row;
}

verdict judge(std::span<const double> row, const expected_row& expected) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  verdict result;
  double largest = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    largest = std::max(largest, std::abs(expected.values[i]));
    double error = std::abs(row[i] - expected.values[i]);
    if (!std::isfinite(error)) error = infinity;
    result.error = std::max(result.error, error);
    // A bound of 0 only occurs with a value of exactly 0, for example for a token of zeros.
    const double bound = expected.bounds[i];
    const double share = bound > 0 ? error / bound : (error > 0 ? infinity : 0);
    result.share_of_bound = std::max(result.share_of_bound, share);
  }
  result.relative_error = largest > 0 ? result.error / largest : result.error;
  return result;
}

}  // namespace moe_text
