// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::collective::detail {

/// The least number of bytes that lanes divide among themselves. Fewer take less time than it takes
/// to give a lane its share.
inline constexpr std::size_t least_shared_bytes = std::size_t{16} << 10U;

/// Copies `bytes` bytes. The ranges are the same or lie apart. Null is allowed if there are none.
inline void copy_bytes(std::byte* target, const std::byte* source, std::size_t bytes) noexcept {
  if (bytes != 0 && target != source) std::memcpy(target, source, bytes);
}

}  // namespace peerbus::collective::detail
