// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::moe {

/// The counts of all ranks as they lie in memory. Each rank has one unsigned number per block, from
/// block `first_block` on, of `count_bytes` (1, 2 or 4) bytes. The numbers of a rank begin `stride`
/// bytes after those of the previous rank. `first` points to those of rank 0.
struct count_table {
  const std::byte* first;       ///< the counts of rank 0
  std::size_t stride;           ///< bytes from the counts of a rank to the counts of the next rank
  std::size_t count_bytes;      ///< bytes of one count: 1, 2 or 4
  std::size_t first_block = 0;  ///< block of the first count of each rank
};

/// Calls `visit(std::type_identity<Count>{})`, where `Count` is the unsigned type of `count_bytes`
/// (1, 2 or 4) bytes.
template <class Visit>
void with_count_type(std::size_t count_bytes, Visit&& visit) noexcept {
  switch (count_bytes) {
    case 1: return visit(std::type_identity<std::uint8_t>{});
    case 2: return visit(std::type_identity<std::uint16_t>{});
    default: return visit(std::type_identity<std::uint32_t>{});
  }
}

}  // namespace peerbus::moe
