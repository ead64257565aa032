// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "support/sanitized.hpp"

namespace test {

/// Whether each call takes long: a sanitizer checks it, or the processor is emulated, for which
/// programs are built with PEERBUS_TEST_EMULATED. Such a build needs to see each line, and the
/// others see each count.
#if defined(PEERBUS_TEST_EMULATED)
inline constexpr bool is_slow = true;
#else
inline constexpr bool is_slow = is_sanitized;
#endif

/// Returns how often a test repeats what it does: `all` times, or a tenth of it where each takes
/// long, but `least` times, among which is each kind.
constexpr std::uint64_t repetitions(std::uint64_t all, std::uint64_t least = 0) {
  return is_slow ? std::max(all / 10, least) : all;
}

/// Returns how many rounds a group of ranks plays: `all`, or two where each takes long. The second
/// meets what the first has left.
constexpr std::size_t rounds(std::size_t all) {
  return is_slow ? std::min<std::size_t>(all, 2) : all;
}

}  // namespace test
