// SPDX-License-Identifier: MIT
#include "support/e4m3_oracle.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace oracle {

const std::array<double, 127>& e4m3_values() {
  static const auto values = [] {
    std::array<double, 127> made{};
    for (int code = 0; code < 127; ++code)
      made[static_cast<std::size_t>(code)] =
          code < 8 ? std::ldexp(code, -9) : std::ldexp(8 + code % 8, code / 8 - 10);
    return made;
  }();
  return values;
}

std::uint8_t e4m3_code(float value) {
  const unsigned sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return static_cast<std::uint8_t>(0x7f | sign);
  const auto& values = e4m3_values();
  const double magnitude = std::fabs(static_cast<double>(value));
  const auto above = std::lower_bound(values.begin(), values.end(), magnitude);
  if (above == values.end()) return static_cast<std::uint8_t>(0x7e | sign);
  auto code = static_cast<unsigned>(above - values.begin());
  if (code > 0) {
    const double up = *above - magnitude;
    const double down = magnitude - *(above - 1);
    if (down < up || (down == up && code % 2 != 0)) --code;
  }
  return static_cast<std::uint8_t>(code | sign);
}

e4m3_scale e4m3_scale_of(float largest, bool power_of_two) {
  const double limited = std::max(static_cast<double>(1e-4F), static_cast<double>(largest));
  const auto reciprocal = static_cast<float>(1.0 / 448.0);
  const auto scale = static_cast<float>(limited * static_cast<double>(reciprocal));
  if (!power_of_two) return {static_cast<float>(448.0 / limited), scale};
  int exponent = 0;
  if (std::frexp(scale, &exponent) == 0.5F) --exponent;
  return {std::ldexp(1.0F, -exponent), std::ldexp(1.0F, exponent)};
}

}  // namespace oracle
