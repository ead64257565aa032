// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstdlib>

#include "support/sanitized.hpp"

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

}  // namespace test
