// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace ep_bench {

/// SplitMix64's mixing function. Written here, as the distributions of <random> differ between
/// standard libraries and the numbers of a seed should not.
constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9e37'79b9'7f4a'7c15U;
  x = (x ^ (x >> 30U)) * 0xbf58'476d'1ce4'e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d0'49bb'1331'11ebU;
  return x ^ (x >> 31U);
}

class random_sequence {
 public:
  constexpr explicit random_sequence(std::uint64_t seed) noexcept : state_{mix(seed)} {}

  constexpr std::uint64_t next() noexcept { return mix(state_++); }
  /// In (0, 1], so that its logarithm is finite.
  constexpr double unit() noexcept { return static_cast<double>((next() >> 11U) + 1) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace ep_bench
