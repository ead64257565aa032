// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

namespace peerbus {

/// Bytes that two cores exchange at a time on the machines we run on (x86-64 and Kunpeng both
/// move 64; `std::hardware_destructive_interference_size` varies with compiler flags, which a
/// layout shared between processes must not).
inline constexpr std::size_t cache_line_bytes = 64;

/// `bytes` rounded up to a multiple of `alignment`, which is at least 1.
constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment) noexcept {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace peerbus
