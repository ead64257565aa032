// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::deep_ep::detail {

/// Four words, which the compiler keeps in one register.
using four_words [[gnu::vector_size(16)]] = std::uint32_t;

/// Copies a matrix of 32-bit words from row-major `source` to column-major `target`: word (r, c) of
/// the contiguous `rows` x `columns` source becomes word c * column_stride + r of `target`.
/// Cost: mostly the cache lines of `target`, which are far apart.
inline void to_column_major(const std::byte* source, std::size_t rows, std::size_t columns,
                            std::byte* target, std::size_t column_stride) noexcept {
  constexpr std::size_t word = sizeof(std::uint32_t);
  constexpr std::size_t block = 4;
  const std::size_t row_bytes = columns * word;
  const std::size_t in_blocks = columns / block * block;
  const auto source_at = [&](std::size_t r, std::size_t c) {
    return source + r * row_bytes + c * word;
  };
  const auto target_at = [&](std::size_t r, std::size_t c) {
    return target + (c * column_stride + r) * word;
  };
  std::size_t r = 0;
  for (; r + block <= rows; r += block) {
    for (std::size_t c = 0; c < in_blocks; c += block) {
      four_words in[block];
      for (std::size_t i = 0; i < block; ++i)
        std::memcpy(&in[i], source_at(r + i, c), sizeof in[i]);
      const four_words low[]{__builtin_shufflevector(in[0], in[1], 0, 4, 1, 5),
                             __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5)};
      const four_words high[]{__builtin_shufflevector(in[0], in[1], 2, 6, 3, 7),
                              __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7)};
      const four_words out[]{__builtin_shufflevector(low[0], low[1], 0, 1, 4, 5),
                             __builtin_shufflevector(low[0], low[1], 2, 3, 6, 7),
                             __builtin_shufflevector(high[0], high[1], 0, 1, 4, 5),
                             __builtin_shufflevector(high[0], high[1], 2, 3, 6, 7)};
      for (std::size_t i = 0; i < block; ++i)
        std::memcpy(target_at(r, c + i), &out[i], sizeof out[i]);
    }
    for (std::size_t c = in_blocks; c < columns; ++c)
      for (std::size_t i = 0; i < block; ++i)
        std::memcpy(target_at(r + i, c), source_at(r + i, c), word);
  }
  for (; r < rows; ++r)
    for (std::size_t c = 0; c < columns; ++c) std::memcpy(target_at(r, c), source_at(r, c), word);
}

}  // namespace peerbus::deep_ep::detail
