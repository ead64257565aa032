// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::deep_ep::detail {

/// Copies a matrix of 32-bit words from row-major `source` to column-major `target`: word (r, c) of
/// the contiguous `rows` x `columns` source becomes word c * column_stride + r of `target`.
inline void to_column_major(const std::byte* source, std::size_t rows, std::size_t columns,
                            std::byte* target, std::size_t column_stride) noexcept {
  constexpr std::size_t word = sizeof(std::uint32_t);
  // So many rows fill a cache line of each column.
  constexpr std::size_t block = 16;
  const std::size_t row_bytes = columns * word;
  for (std::size_t first = 0; first < rows; first += block) {
    const std::size_t count = std::min(block, rows - first);
    const std::byte* const part = source + first * row_bytes;
    for (std::size_t c = 0; c < columns; ++c) {
      std::byte* const column = target + (c * column_stride + first) * word;
      for (std::size_t r = 0; r < count; ++r)
        std::memcpy(column + r * word, part + r * row_bytes + c * word, word);
    }
  }
}

}  // namespace peerbus::deep_ep::detail
