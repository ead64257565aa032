// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

namespace ep_bench {

/// The least of 1, 2, 5 times a power of ten that is not below `value`, which is above 0.
inline double round_step(double value) noexcept {
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= value) return factor * power;
  return 10 * power;
}

}  // namespace ep_bench
