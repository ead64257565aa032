// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)  // g++
inline constexpr bool is_sanitized = true;
#elif defined(__has_feature)  // clang++
inline constexpr bool is_sanitized =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool is_sanitized = false;
#endif

/// Returns how often a test repeats what it does: `all` times, or a tenth of it where a sanitizer
/// makes each time slow. A sanitizer needs to see each line, and the other builds see each count.
constexpr std::uint64_t repetitions(std::uint64_t all) { return is_sanitized ? all / 10 : all; }

}  // namespace test
