// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace test {

#if defined(__has_feature)  // clang++
inline constexpr bool has_address_sanitizer = __has_feature(address_sanitizer);
inline constexpr bool has_thread_sanitizer = __has_feature(thread_sanitizer);
#else
#if defined(__SANITIZE_ADDRESS__)  // g++
inline constexpr bool has_address_sanitizer = true;
#else
inline constexpr bool has_address_sanitizer = false;
#endif
#if defined(__SANITIZE_THREAD__)
inline constexpr bool has_thread_sanitizer = true;
#else
inline constexpr bool has_thread_sanitizer = false;
#endif
#endif
inline constexpr bool is_sanitized = has_address_sanitizer || has_thread_sanitizer;

/// Returns how often a test repeats what it does: `all` times, or a tenth of it where a sanitizer
/// makes each time slow. A sanitizer needs to see each line, and the other builds see each count.
constexpr std::uint64_t repetitions(std::uint64_t all) { return is_sanitized ? all / 10 : all; }

}  // namespace test
