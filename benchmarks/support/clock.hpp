// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

namespace bench {

using clock = std::chrono::steady_clock;

inline double microseconds(clock::duration span) noexcept {
  return std::chrono::duration<double, std::micro>{span}.count();
}
inline double nanoseconds(clock::duration span) noexcept {
  return std::chrono::duration<double, std::nano>{span}.count();
}

}  // namespace bench
