// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include <doctest/doctest.h>

#include "support/repetitions.hpp"

namespace test {

/// Returns `variable` of the environment as a number, or `otherwise` if it is not set.
inline std::uint64_t number_from_environment(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// Returns the seconds that a random search may take: PEERBUS_SEARCH_SECONDS, or 10.
inline unsigned search_seconds() {
  return static_cast<unsigned>(number_from_environment("PEERBUS_SEARCH_SECONDS", 10));
}

/// Returns how often a soak repeats what it does: `all` times in a search of 10 s, in proportion
/// in another one, and a tenth of it under a sanitizer.
inline std::uint64_t soak_repetitions(std::uint64_t all) {
  return repetitions(all) * search_seconds() / 10;
}

/// Calls `play(seed)` for as many seeds as a soak of `all` has, or as `variable` of the environment
/// says, from the seed PEERBUS_SEED on.
template <class F>
void for_each_seed(const char* variable, std::uint64_t all, F play) {
  const std::uint64_t first = number_from_environment("PEERBUS_SEED", 1);
  const std::uint64_t count =
      number_from_environment(variable, std::max<std::uint64_t>(1, soak_repetitions(all)));
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    CAPTURE(seed);
    play(seed);
  }
}

}  // namespace test
