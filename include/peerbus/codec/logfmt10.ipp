// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstring>

#include <peerbus/codec/logfmt10.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/kernel/kernel_set.hpp>

namespace peerbus::codec::logfmt10 {

namespace detail {

using kernel::group_columns;

/// The values of a logarithmic scale that are not 0.
inline constexpr float codes_above_zero = 511;
/// The most octaves that a scale spans.
inline constexpr float most_octaves = 32;
/// The channels whose codes and signs share words.
inline constexpr std::size_t packed = 16;
/// The bytes of the codes of `packed` channels. Their signs follow.
inline constexpr std::size_t packed_code_bytes = packed * 9 / 8;

/// The scale of a group.
struct log_scale {
  float lowest;  ///< log2 of the value of code 1
  float step;    ///< difference of the log2 of the values of consecutive codes
};

/// The ends of up to `most_rows` scales. Their logarithms are taken together.
class log_ends {
 public:
  void set(std::size_t i, head group_head) noexcept {
    ends_[2 * i] = group_head.largest;
    ends_[2 * i + 1] = group_head.smallest;
  }
  void take_logs(const kernel::kernel_set& kernels) noexcept {
    kernels.log2_magnitudes(ends_, logs_);
  }
  [[nodiscard]] log_scale scale(std::size_t i) const noexcept {
    const float lowest = std::max(logs_[2 * i + 1], logs_[2 * i] - most_octaves);
    return {lowest, (logs_[2 * i] - lowest) / (codes_above_zero - 1)};
  }

 private:
  ::peerbus::bf16 ends_[group_columns] = {};
  float logs_[group_columns];
};

/// Returns what is added to a code before it is rounded down, so that values on average keep their
/// size: a value becomes the code below it or above it, whichever is nearer to it. With s = `step`,
/// the value halfway between codes 0 and 1 is at log2((1 + 2^s) / 2) = s/2 + s^2 ln(2)/8 - ..., of
/// which the next term is below 4e-7 steps.
[[nodiscard]] inline float rounding(float step) noexcept {
  constexpr float eighth_of_ln2 = 0.086643398F;
  return __builtin_fmaf(-step, eighth_of_ln2, 1.5F);
}

/// Returns the head of a group.
[[nodiscard]] inline head head_of(const ::peerbus::bf16* columns) noexcept {
  std::int16_t largest = 0;
  std::int16_t smallest = 0x7fff;
  for (std::size_t i = 0; i < group_columns; ++i) {
    const auto magnitude = static_cast<std::int16_t>(columns[i].bits & 0x7fffU);
    largest = std::max(largest, magnitude);
    smallest = std::min(smallest, magnitude);
  }
  return {::peerbus::bf16::from_bits(static_cast<std::uint16_t>(largest)),
          ::peerbus::bf16::from_bits(static_cast<std::uint16_t>(smallest))};
}

/// Writes the codes of a group, of 9 bits each, and the signs of its columns.
inline void pack(const std::uint16_t* codes, const ::peerbus::bf16* columns,
                 std::byte* out) noexcept {
  for (std::size_t begin = 0; begin < group_columns; begin += packed) {
    std::uint64_t words[3] = {};
#pragma GCC unroll 2
    for (std::size_t half = 0; half < 2; ++half) {
      const std::uint16_t* const eight = codes + begin + half * 8;
      // Seven codes fill 63 bits. The eighth lies across two words.
      std::uint64_t low = 0;
#pragma GCC unroll 7
      for (std::size_t i = 0; i < 7; ++i) low |= std::uint64_t{eight[i]} << 9 * i;
      low |= std::uint64_t{eight[7]} << 63;
      const std::uint64_t high = eight[7] >> 1U;
      words[half] |= half == 0 ? low : low << 8;
      words[half + 1] |= half == 0 ? high : high << 8 | low >> 56;
    }
#pragma GCC unroll 16
    for (std::size_t i = 0; i < packed; ++i) {
      const std::uint64_t bits = columns[begin + i].bits;
      words[2] |= bits >> 15 << (16 + i);
    }
    std::memcpy(out, words, packed_code_bytes + packed / 8);
    out += packed_code_bytes + packed / 8;
  }
}

/// Reads what `pack` wrote: the code of each column, and its sign in the bit above.
inline void unpack(const std::byte* in, std::uint16_t* codes) noexcept {
  for (std::size_t begin = 0; begin < group_columns; begin += packed) {
    std::uint64_t words[3] = {};
    std::memcpy(words, in, packed_code_bytes + packed / 8);
    in += packed_code_bytes + packed / 8;
    const std::uint64_t signs = words[2] >> 16;
    const auto take = [&](std::size_t i, std::uint64_t bits) noexcept {
      const std::uint64_t sign = signs >> i & 1;
      codes[begin + i] = static_cast<std::uint16_t>((bits & 0x1ffU) | sign << 9);
    };
#pragma GCC unroll 7
    for (std::size_t i = 0; i < 7; ++i) take(i, words[0] >> 9 * i);
    take(7, words[0] >> 63 | words[1] << 1);
#pragma GCC unroll 6
    for (std::size_t i = 0; i < 6; ++i) take(8 + i, words[1] >> (8 + 9 * i));
    take(14, words[1] >> 62 | words[2] << 2);
    take(15, words[2] >> 7);
  }
}

}  // namespace detail

PEERBUS_INLINE std::size_t row_bytes(std::span<const head> heads) noexcept {
  const std::size_t chunk = chunk_groups(heads.size() * kernel::group_columns);
  std::size_t bytes = 0;
  for (std::size_t g = 0; g < heads.size(); g += chunk)
    bytes += chunk * (is_coded(heads.subspan(g, chunk)) ? coded_bytes() : plain_bytes());
  return bytes;
}

PEERBUS_INLINE std::size_t encode(std::span<const ::peerbus::bf16> row, std::span<head> heads,
                                  std::byte* out) noexcept {
  const kernel::kernel_set& kernels = kernel::best();
  const std::size_t chunk = chunk_groups(row.size());
  std::byte* end = out;
  for (std::size_t first = 0; first < heads.size(); first += chunk) {
    detail::log_ends ends;
    for (std::size_t i = 0; i < chunk; ++i) {
      heads[first + i] = detail::head_of(row.data() + (first + i) * kernel::group_columns);
      ends.set(i, heads[first + i]);
    }
    if (!is_coded(heads.subspan(first, chunk))) {
      std::memcpy(end, row.data() + first * kernel::group_columns, chunk * plain_bytes());
      end += chunk * plain_bytes();
      continue;
    }
    ends.take_logs(kernels);
    for (std::size_t i = 0; i < chunk; ++i, end += coded_bytes()) {
      const ::peerbus::bf16* const columns = row.data() + (first + i) * kernel::group_columns;
      const detail::log_scale scale = ends.scale(i);
      const float per_step = 1.0F / scale.step;
      const float offset = __builtin_fmaf(-scale.lowest, per_step, detail::rounding(scale.step));
      float logs[kernel::group_columns];
      std::uint16_t codes[kernel::group_columns];
      kernels.log2_magnitudes(columns, logs);
      kernels.log_codes(logs, per_step, offset, codes);
      detail::pack(codes, columns, end);
    }
  }
  return static_cast<std::size_t>(end - out);
}

PEERBUS_INLINE void next_groups(std::span<reader> rows,
                                ::peerbus::bf16 (*scratch)[kernel::group_columns],
                                const ::peerbus::bf16** values) noexcept {
  const kernel::kernel_set& kernels = kernel::best();
  detail::log_ends ends;
  for (std::size_t i = 0; i < rows.size(); ++i) ends.set(i, rows[i].heads_[rows[i].group_]);
  ends.take_logs(kernels);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    reader& row = rows[i];
    const std::size_t chunk = chunk_groups(row.heads_.size() * kernel::group_columns);
    if (row.group_ % chunk == 0) row.coded_ = is_coded(row.heads_.subspan(row.group_, chunk));
    ++row.group_;
    values[i] = peerbus::detail::placed<::peerbus::bf16>(row.next_);
    if (row.coded_) {
      const detail::log_scale scale = ends.scale(i);
      std::uint16_t codes[kernel::group_columns];
      detail::unpack(row.next_, codes);
      kernels.log_values(codes, scale.step, scale.lowest, scratch[i]);
      values[i] = scratch[i];
    }
    row.next_ += row.coded_ ? coded_bytes() : plain_bytes();
  }
}

}  // namespace peerbus::codec::logfmt10
