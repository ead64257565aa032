// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <peerbus/core/align.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/fp8.hpp>
#include <peerbus/kernel/group.hpp>

/// The reference kernels. Every other set gives the same bits as these loops. The members of
/// `kernel_set` state their contracts.
///
/// Nothing here multiplies and then adds, except through a fused multiply-add. A compiler may fuse
/// `a * b + c` if the target has the instruction, so that the bits would depend on its flags.
/// Arithmetic functions are builtins, so that users need not parse `<cmath>`.
namespace peerbus::kernel::scalar {

/// The NaN that `weighted_sum` and `dequantise_e4m3` give. Without it, the sign and payload of a
/// NaN result would depend on the CPU and on the order of the operands, which the compiler chooses.
inline constexpr bf16 canonical_nan = bf16::from_bits(0x7fc0);

/// Computes the columns [begin, end) of `weighted_sum`. Other sets call it for the columns that do
/// not fill a register.
inline void weighted_sum_columns(const bf16* const* rows, const float* weights,
                                 std::size_t row_count, std::size_t begin, std::size_t end,
                                 bf16* out) noexcept {
  constexpr std::size_t block = 64;
  for (; begin < end; begin += block) {
    const std::size_t count = std::min(block, end - begin);
    float sums[block] = {};
    for (std::size_t row = 0; row < row_count; ++row) {
      const bf16* const source = rows[row] + begin;
      const float weight = weights[row];
      for (std::size_t i = 0; i < count; ++i)
        sums[i] = __builtin_fmaf(weight, static_cast<float>(source[i]), sums[i]);
    }
    for (std::size_t i = 0; i < count; ++i)
      out[begin + i] = __builtin_isnan(sums[i]) ? canonical_nan : bf16{sums[i]};
  }
}

/// Implements `kernel_set::weighted_sum` for the scalar set.
inline void weighted_sum(const bf16* const* rows, const float* weights, std::size_t row_count,
                         std::size_t hidden, bf16* out) noexcept {
  weighted_sum_columns(rows, weights, row_count, 0, hidden, out);
}

/// Implements `kernel_set::max_magnitude_bits` for the scalar set.
[[nodiscard]] inline std::uint16_t max_magnitude_bits(const bf16* row,
                                                      std::size_t hidden) noexcept {
  std::uint16_t largest = 0;
  for (std::size_t i = 0; i < hidden; ++i) {
    const auto magnitude = static_cast<std::uint16_t>(row[i].bits & 0x7fffU);
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

/// Computes the columns [begin, end) of `quantise_int8`. Other sets call it for the columns that do
/// not fill a register.
inline void quantise_int8_columns(const bf16* row, float inverse_scale, std::size_t begin,
                                  std::size_t end, std::byte* out) noexcept {
  // Adding 1.5 * 2^23 to a number of magnitude below 2^22 rounds it to an integer, ties to even.
  // The integer is then the low part of the representation. The clamp lies between the product and
  // the sum, so that they cannot be fused.
  constexpr float shift = 0x1.8p23F;
  constexpr std::size_t block = 64;
  for (; begin < end; begin += block) {
    const std::size_t count = std::min(block, end - begin);
    std::int8_t codes[block];
    for (std::size_t i = 0; i < count; ++i) {
      const float scaled = static_cast<float>(row[begin + i]) * inverse_scale;
      const float lower = scaled < -127.0F ? -127.0F : scaled;
      const float clamped = lower > 127.0F ? 127.0F : lower;
      const float shifted = clamped + shift;
      codes[i] = static_cast<std::int8_t>(std::bit_cast<std::int32_t>(shifted) -
                                          std::bit_cast<std::int32_t>(shift));
    }
    std::memcpy(out + begin, codes, count);
  }
}

/// Implements `kernel_set::quantise_int8` for the scalar set.
inline void quantise_int8(const bf16* row, std::size_t hidden, float inverse_scale,
                          std::byte* out) noexcept {
  quantise_int8_columns(row, inverse_scale, 0, hidden, out);
}

/// Implements `kernel_set::dequantise_int8` for the scalar set.
inline void dequantise_int8(const std::int8_t* row, std::size_t hidden, float scale,
                            float* out) noexcept {
  for (std::size_t i = 0; i < hidden; ++i) out[i] = static_cast<float>(row[i]) * scale;
}

/// Implements `kernel_set::group_magnitude_bits` for the scalar set.
inline void group_magnitude_bits(const bf16* row, std::size_t groups, std::uint16_t* out) noexcept {
  for (std::size_t group = 0; group < groups; ++group)
    out[group] = max_magnitude_bits(row + group * group_columns, group_columns);
}

/// Returns the largest magnitude bits of an element whose product with `scale` is a number. Greater
/// magnitude bits give NaN. The sets that detect NaN in the elements use it.
[[nodiscard]] inline std::int16_t largest_ordered(float scale) noexcept {
  return __builtin_isnan(scale) ? std::int16_t{-1} : std::int16_t{0x7f80};
}

/// Implements `kernel_set::quantise_e4m3` for the scalar set.
inline void quantise_e4m3(const bf16* row, const float* scales, std::size_t first,
                          std::size_t groups, std::byte* out) noexcept {
  for (std::size_t group = 0; group < groups; ++group) {
    const std::size_t begin = (first + group) * group_columns;
    std::uint8_t codes[group_columns];
    for (std::size_t i = 0; i < group_columns; ++i) {
      const bf16 element = row[begin + i];
      const bf16 magnitude = bf16::from_bits(static_cast<std::uint16_t>(element.bits & 0x7fffU));
      const auto code = fp8_e4m3{static_cast<float>(magnitude) * scales[group]}.bits & 0x7fU;
      codes[i] = static_cast<std::uint8_t>(code | (element.bits >> 8 & 0x80U));
    }
    std::memcpy(out + begin, codes, group_columns);
  }
}

/// Implements `kernel_set::dequantise_e4m3` for the scalar set.
inline void dequantise_e4m3(const fp8_e4m3* row, const float* scales, std::size_t groups,
                            float* out) noexcept {
  for (std::size_t i = 0; i < groups * group_columns; ++i) {
    const float value = static_cast<float>(row[i]) * scales[i / group_columns];
    out[i] = __builtin_isnan(value) ? static_cast<float>(canonical_nan) : value;
  }
}

/// Implements `kernel_set::widen` for the scalar set.
inline void widen(const bf16* source, std::size_t count, float* out) noexcept {
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<float>(source[i]);
}

/// Implements `kernel_set::narrow` for the scalar set.
inline void narrow(const float* source, std::size_t count, bf16* out) noexcept {
  for (std::size_t i = 0; i < count; ++i) out[i] = bf16{source[i]};
}

/// Implements `kernel_set::stream_lines` for the scalar set, by plain stores.
inline void stream_lines(const std::byte* source, std::size_t lines, std::byte* out) noexcept {
  // Without lines, the pointers may be null, which memcpy does not accept.
  if (lines != 0) std::memcpy(out, source, lines * cache_line_bytes);
}

}  // namespace peerbus::kernel::scalar
