// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

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

/// Returns the numbers of ranks, of `all`, with which this build tries a `Group`. Each is tried in
/// one build at least: threads by AddressSanitizer, processes without a sanitizer. In the other
/// build, where a rank is slow and ranks share few cores, those beyond 4 would take most of the
/// time.
template <class Group>
std::vector<std::size_t> sizes_for(std::initializer_list<std::size_t> all = {1, 2, 3, 4, 5, 8}) {
  constexpr std::size_t most_of_slow_ranks = 4;
  constexpr bool is_slow = Group::are_threads ? has_thread_sanitizer : has_address_sanitizer;
  std::vector<std::size_t> sizes;
  for (const std::size_t ranks : all)
    if (!is_slow || ranks <= most_of_slow_ranks) sizes.push_back(ranks);
  return sizes;
}

}  // namespace test
