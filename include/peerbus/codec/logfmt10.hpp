// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/kernel/group.hpp>

/// LogFMT-10, the format of DeepEP for outputs on their way home: 10 bits per value on a
/// logarithmic scale whose ends each group of 128 channels chooses. Not a `token_codec`, because
/// the bytes of a row depend on its values.
///
/// A group can be coded if its largest magnitude is below 1 and differs from its smallest. Groups
/// are coded by the chunk: 1024 channels, or 512, or 128, whichever divides the hidden size first.
/// A chunk with a group that cannot be coded travels as bf16, unchanged.
///
/// | part  | bytes                                | contents                                    |
/// | ----- | ------------------------------------ | ------------------------------------------- |
/// | heads | 4 per group                          | largest and smallest magnitude, bf16        |
/// | row   | per chunk 10 / 8 or 2 per channel    | of 16 channels: 144 bits of codes, 16 signs |
///
/// With a = log2 of the largest magnitude, i = log2 of the smallest, but at least a - 32, and
/// s = (a - i) / 510: code 0 is the value 0, and code c is 2 to the power i + (c - 1) * s. Codes
/// are rounded so that the mean error of values, not of logarithms, is 0. DeepEP decodes to f32;
/// here values are rounded to bf16.
/// Source: DeepEP 2.1.0, csrc/kernels/legacy/internode_ll.cu. The order of parts is ours.
namespace peerbus::codec::logfmt10 {

/// The head of a group: two magnitudes.
struct head {
  ::peerbus::bf16 largest;   ///< the largest magnitude, without its sign
  ::peerbus::bf16 smallest;  ///< the smallest magnitude, without its sign
};
static_assert(sizeof(head) == 4);

/// The number of which every hidden size must be a multiple.
inline constexpr std::size_t hidden_multiple = kernel::group_columns;

/// Returns the number of groups of a row.
[[nodiscard]] constexpr std::size_t groups(std::size_t hidden) noexcept {
  return hidden / kernel::group_columns;
}
/// Returns the size in bytes of the heads of a row.
[[nodiscard]] constexpr std::size_t head_bytes(std::size_t hidden) noexcept {
  return groups(hidden) * sizeof(head);
}
/// Returns the number of groups of a chunk, which are either all coded or all not coded.
[[nodiscard]] constexpr std::size_t chunk_groups(std::size_t hidden) noexcept {
  return hidden % 1024 == 0 ? 8 : hidden % 512 == 0 ? 4 : 1;
}
/// Returns the size in bytes of a coded group.
[[nodiscard]] constexpr std::size_t coded_bytes() noexcept {
  return kernel::group_columns * 10 / 8;
}
/// Returns the size in bytes of a group that is not coded.
[[nodiscard]] constexpr std::size_t plain_bytes() noexcept {
  return kernel::group_columns * sizeof(::peerbus::bf16);
}

/// Returns whether a group with the head `group_head` can be coded.
[[nodiscard]] constexpr bool can_code(head group_head) noexcept {
  constexpr std::uint16_t one = 0x3f80;
  return group_head.largest.bits < one && group_head.smallest.bits < group_head.largest.bits;
}
/// Returns whether the chunk whose groups have `heads` is coded.
[[nodiscard]] constexpr bool is_coded(std::span<const head> heads) noexcept {
  for (const head group_head : heads)
    if (!can_code(group_head)) return false;
  return true;
}

/// Returns the size in bytes of the row whose groups have `heads`: [groups]. At most 2 x hidden.
[[nodiscard]] std::size_t row_bytes(std::span<const head> heads) noexcept;

/// Encodes `row`: [hidden], a multiple of `hidden_multiple`. Writes all of `heads`, [groups], and
/// the first bytes of `out`, which has room for 2 x hidden bytes.
/// Returns: the number of bytes written to `out`, equal to `row_bytes(heads)`.
/// Cost: reads the row twice. Three passes of arithmetic over the coded groups.
std::size_t encode(std::span<const ::peerbus::bf16> row, std::span<head> heads,
                   std::byte* out) noexcept;

/// The largest number of rows that `next_groups` decodes at once.
inline constexpr std::size_t most_rows = kernel::group_columns / 2;

/// A row that is decoded one group after the other. The row and its heads must outlive the reader.
class reader {
 public:
  reader() = default;
  /// Makes a reader before the first group of the row at `row` with `heads`: [groups].
  reader(std::span<const head> heads, const std::byte* row) noexcept : heads_{heads}, next_{row} {}

 private:
  friend void next_groups(std::span<reader> rows, ::peerbus::bf16 (*scratch)[kernel::group_columns],
                          const ::peerbus::bf16** values) noexcept;

  std::span<const head> heads_;
  const std::byte* next_ = nullptr;
  std::size_t group_ = 0;
  bool coded_ = false;  ///< whether the current chunk is coded
};

/// Decodes the next group of each of `rows`. There are at most `most_rows` rows, all of one hidden
/// size. Sets values[i] to the 128 values of row i, which lie in scratch[i] or, if the group is not
/// coded, in the row.
/// Cost: one pass of arithmetic over each coded group, and one over all heads.
void next_groups(std::span<reader> rows, ::peerbus::bf16 (*scratch)[kernel::group_columns],
                 const ::peerbus::bf16** values) noexcept;

}  // namespace peerbus::codec::logfmt10

#ifndef PEERBUS_COMPILED
#include <peerbus/codec/logfmt10.ipp>  // IWYU pragma: keep
#endif
