// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

namespace peerbus::moe {

/// The counts of all ranks as they lie in memory: for each rank one unsigned number per block, of
/// `count_bytes` (1, 2 or 4) bytes each. The numbers of a rank begin `stride` bytes after those of
/// the rank before it.
struct count_table {
  const std::byte* first;
  std::size_t stride;
  std::size_t count_bytes;
};

}  // namespace peerbus::moe
