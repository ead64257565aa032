// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

/// The size of the memory block that two cores exchange at a time: 64 bytes on x86-64 and on
/// Kunpeng. It is a constant because processes share layouts that depend on it, and
/// `std::hardware_destructive_interference_size` varies with compiler flags.
inline constexpr std::size_t cache_line_bytes = 64;

/// Returns `bytes` rounded up to a multiple of `alignment`. `alignment` is at least 1.
constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment) noexcept {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace peerbus
