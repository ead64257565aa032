// SPDX-License-Identifier: MIT
#pragma once

#if defined(__aarch64__)

#include <arm_neon.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <peerbus/core/align.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/scalar.hpp>

/// Kernels for the vector instructions that every AArch64 CPU has (Kunpeng included). They need no
/// extension.
///
/// A compiler may fuse a product and a sum of two intrinsics, because it treats them as plain
/// operators. As in scalar.hpp, another operation stands between any two that must be rounded
/// separately.
namespace peerbus::kernel::neon {

namespace detail {

/// Eight columns as f32, four in each vector.
struct eight {
  float32x4_t low;
  float32x4_t high;
};

[[nodiscard, gnu::always_inline]] inline uint16x8_t load(const bf16* address) noexcept {
  // A bf16 is its bits. The load is one of bytes, because only bytes may alias another type.
  return vreinterpretq_u16_u8(vld1q_u8(reinterpret_cast<const std::uint8_t*>(address)));
}

[[gnu::always_inline]] inline void store(bf16* address, uint16x8_t values) noexcept {
  vst1q_u8(reinterpret_cast<std::uint8_t*>(address), vreinterpretq_u8_u16(values));
}

[[nodiscard, gnu::always_inline]] inline eight widened(uint16x8_t values) noexcept {
  return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(values), 16)),
          vreinterpretq_f32_u32(vshll_high_n_u16(values, 16))};
}

/// Rounds each lane to bf16 in its upper half; the lower half is meaningless. NaN lanes become the
/// lanes of `nan`.
[[nodiscard, gnu::always_inline]] inline uint32x4_t rounded(float32x4_t value,
                                                            uint32x4_t nan) noexcept {
  const uint32x4_t bits = vreinterpretq_u32_f32(value);
  const uint32x4_t is_odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t half = vaddq_u32(is_odd, vdupq_n_u32(0x7fff));
  return vbslq_u32(vceqq_f32(value, value), vaddq_u32(bits, half), nan);
}

/// Rounds each lane to bf16 in its upper half and makes each NaN quiet, as `bf16` does.
[[nodiscard, gnu::always_inline]] inline uint32x4_t rounded(float32x4_t value) noexcept {
  return rounded(value, vorrq_u32(vreinterpretq_u32_f32(value), vdupq_n_u32(0x0040'0000)));
}

[[nodiscard, gnu::always_inline]] inline uint16x8_t upper_halves(uint32x4_t low,
                                                                 uint32x4_t high) noexcept {
  return vuzp2q_u16(vreinterpretq_u16_u32(low), vreinterpretq_u16_u32(high));
}

/// Returns the products of `value` and `inverse`, rounded to integers and clamped to [-127, 127]. A
/// NaN passes `min` and `max` and becomes 0.
[[nodiscard, gnu::always_inline]] inline int32x4_t quantised(float32x4_t value,
                                                             float32x4_t inverse) noexcept {
  const float32x4_t scaled = vmulq_f32(value, inverse);
  const float32x4_t lower = vmaxq_f32(scaled, vdupq_n_f32(-127.0F));
  return vcvtnq_s32_f32(vminq_f32(lower, vdupq_n_f32(127.0F)));
}

/// Returns the codes of 8 columns, each in 16 bits.
[[nodiscard, gnu::always_inline]] inline int16x8_t quantised(const bf16* columns,
                                                             float32x4_t inverse) noexcept {
  const eight values = widened(load(columns));
  return vcombine_s16(vmovn_s32(quantised(values.low, inverse)),
                      vmovn_s32(quantised(values.high, inverse)));
}

/// Sums `Lanes` registers of 8 columns, beginning at `column`, in one pass over the rows with the
/// sums in registers. It also prefetches the same number of columns beginning at `ahead`. The rows
/// are more streams than the hardware prefetcher follows, and each stream ends after a few pages.
template <std::size_t Lanes>
[[gnu::always_inline]] inline void sum_block(const bf16* const* rows, const float* weights,
                                             std::size_t row_count, std::size_t column,
                                             std::size_t ahead, bf16* out) noexcept {
  eight sums[Lanes];
#pragma GCC unroll 8
  for (std::size_t lane = 0; lane < Lanes; ++lane)
    sums[lane].low = sums[lane].high = vdupq_n_f32(0.0F);
  for (std::size_t row = 0; row < row_count; ++row) {
    const float32x4_t weight = vdupq_n_f32(weights[row]);
#pragma GCC unroll 8
    for (std::size_t lane = 0; lane < Lanes; ++lane) {
      if (lane % 4 == 0) __builtin_prefetch(rows[row] + ahead + lane * 8);
      const eight values = widened(load(rows[row] + column + lane * 8));
      sums[lane].low = vfmaq_f32(sums[lane].low, weight, values.low);
      sums[lane].high = vfmaq_f32(sums[lane].high, weight, values.high);
    }
  }
  const uint32x4_t nan = vdupq_n_u32(static_cast<std::uint32_t>(scalar::canonical_nan.bits) << 16);
#pragma GCC unroll 8
  for (std::size_t lane = 0; lane < Lanes; ++lane)
    store(out + column + lane * 8,
          upper_halves(rounded(sums[lane].low, nan), rounded(sums[lane].high, nan)));
}

}  // namespace detail

inline void weighted_sum(const bf16* const* rows, const float* weights, std::size_t row_count,
                         std::size_t hidden, bf16* out) noexcept {
  constexpr std::size_t block = 64;
  constexpr std::size_t distance = 256;
  std::size_t column = 0;
  for (; column + block <= hidden; column += block) {
    const std::size_t ahead = std::min(column + distance, hidden - block);
    detail::sum_block<block / 8>(rows, weights, row_count, column, ahead, out);
  }
  for (; column + 8 <= hidden; column += 8)
    detail::sum_block<1>(rows, weights, row_count, column, column, out);
  scalar::weighted_sum_columns(rows, weights, row_count, column, hidden, out);
}

[[nodiscard]] inline std::uint16_t max_magnitude_bits(const bf16* row,
                                                      std::size_t hidden) noexcept {
  const uint16x8_t mask = vdupq_n_u16(0x7fff);
  uint16x8_t largest[2] = {vdupq_n_u16(0), vdupq_n_u16(0)};
  std::size_t i = 0;
  for (; i + 16 <= hidden; i += 16) {
    largest[0] = vmaxq_u16(largest[0], vandq_u16(detail::load(row + i), mask));
    largest[1] = vmaxq_u16(largest[1], vandq_u16(detail::load(row + i + 8), mask));
  }
  return std::max(vmaxvq_u16(vmaxq_u16(largest[0], largest[1])),
                  scalar::max_magnitude_bits(row + i, hidden - i));
}

inline void quantise_int8(const bf16* row, std::size_t hidden, float inverse_scale,
                          std::byte* out) noexcept {
  const float32x4_t inverse = vdupq_n_f32(inverse_scale);
  std::size_t i = 0;
#pragma GCC unroll 4
  for (; i + 16 <= hidden; i += 16)
    vst1q_s8(reinterpret_cast<std::int8_t*>(out + i),
             vcombine_s8(vmovn_s16(detail::quantised(row + i, inverse)),
                         vmovn_s16(detail::quantised(row + i + 8, inverse))));
  scalar::quantise_int8_columns(row, inverse_scale, i, hidden, out);
}

inline void dequantise_int8(const std::int8_t* row, std::size_t hidden, float scale,
                            float* out) noexcept {
  const float32x4_t factor = vdupq_n_f32(scale);
  std::size_t i = 0;
  for (; i + 8 <= hidden; i += 8) {
    const int16x8_t codes = vmovl_s8(vld1_s8(row + i));
    vst1q_f32(out + i, vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(codes))), factor));
    vst1q_f32(out + i + 4, vmulq_f32(vcvtq_f32_s32(vmovl_high_s16(codes)), factor));
  }
  scalar::dequantise_int8(row + i, hidden - i, scale, out + i);
}

inline void widen(const bf16* source, std::size_t count, float* out) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const detail::eight values = detail::widened(detail::load(source + i));
    vst1q_f32(out + i, values.low);
    vst1q_f32(out + i + 4, values.high);
  }
  scalar::widen(source + i, count - i, out + i);
}

inline void narrow(const float* source, std::size_t count, bf16* out) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8)
    detail::store(out + i, detail::upper_halves(detail::rounded(vld1q_f32(source + i)),
                                                detail::rounded(vld1q_f32(source + i + 4))));
  scalar::narrow(source + i, count - i, out + i);
}

inline void stream_lines(const std::byte* source, std::size_t lines, std::byte* out) noexcept {
  for (std::size_t i = 0; i < lines * cache_line_bytes; i += cache_line_bytes) {
    uint8x16_t parts[4];
    std::memcpy(parts, source + i, cache_line_bytes);
    // There is no intrinsic for a pair of non-temporal stores that all compilers have.
    asm volatile(
        "stnp %q[a], %q[b], [%[to]]\n\t"
        "stnp %q[c], %q[d], [%[to], #32]"
        :
        : [a] "w"(parts[0]), [b] "w"(parts[1]), [c] "w"(parts[2]), [d] "w"(parts[3]),
          [to] "r"(out + i)
        : "memory");
  }
}

}  // namespace peerbus::kernel::neon

#endif
