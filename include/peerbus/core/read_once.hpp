// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/align.hpp>

namespace peerbus {

/// Reads one byte of every cache line, to time the read or to fill the caches.
inline void read_once(std::span<const std::byte> bytes) noexcept {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); i += cache_line_bytes)
    sum += static_cast<std::uint64_t>(bytes[i]);
  asm volatile("" : : "r"(sum));  // Otherwise nobody would need the sum.
}

}  // namespace peerbus
