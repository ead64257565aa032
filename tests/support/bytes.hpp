// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

/// Fills and compares many bytes by one call. A loop over megabytes takes seconds where tests are
/// not optimised, and minutes under a sanitizer.
namespace test {

inline void fill_bytes(std::span<std::byte> bytes, std::byte value) {
  if (!bytes.empty()) std::memset(bytes.data(), std::to_integer<int>(value), bytes.size());
}

/// Returns whether every byte is `value`: the first one is, and each equals the one after it.
inline bool all_bytes_are(std::span<const std::byte> bytes, std::byte value) {
  return bytes.empty() || (bytes.front() == value &&
                           std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

inline bool equal_bytes(std::span<const std::byte> one, std::span<const std::byte> other) {
  return one.size() == other.size() &&
         (one.empty() || std::memcmp(one.data(), other.data(), one.size()) == 0);
}

/// Fills `bytes` with the pattern of a number, 256 of which differ everywhere.
void fill_pattern(std::span<std::byte> bytes, std::uint64_t number);
/// Returns how many bytes are those of the pattern, up to the first that is not.
std::size_t bytes_of_pattern(std::span<const std::byte> bytes, std::uint64_t number);

}  // namespace test
