// SPDX-License-Identifier: MIT
#pragma once

#if defined(__aarch64__)

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/fp8.hpp>
#include <peerbus/kernel/neon.hpp>
#include <peerbus/kernel/scalar.hpp>

/// The fp8 kernels for NEON. The conditions of neon.hpp apply.
namespace peerbus::kernel::neon {

namespace detail {

/// Returns 1128 + the code of `value` times `scale` in the lower half of each lane. If the product
/// is beyond the largest code, the result is larger than that of the largest code. The upper half
/// is meaningless. The constructor of `fp8_e4m3` explains the method.
[[nodiscard, gnu::always_inline]] inline uint16x8_t e4m3_sums(float32x4_t value,
                                                              float32x4_t scale) noexcept {
  namespace e4m3 = peerbus::detail::e4m3;
  const float32x4_t scaled = vabsq_f32(vmulq_f32(value, scale));
  const float32x4_t at_least = vmaxq_f32(scaled, vdupq_n_f32(e4m3::smallest_normal));
  const uint32x4_t shift =
      vandq_u32(vreinterpretq_u32_f32(vmulq_f32(at_least, vdupq_n_f32(e4m3::power_to_shift))),
                vdupq_n_u32(e4m3::exponent_mask));
  const uint32x4_t sum = vreinterpretq_u32_f32(vaddq_f32(scaled, vreinterpretq_f32_u32(shift)));
  return vreinterpretq_u16_u32(vsraq_n_u32(sum, sum, 20));
}

/// Returns 8 codes, each in the low byte of 16 bits; the upper byte is meaningless.
[[nodiscard, gnu::always_inline]] inline uint16x8_t e4m3_codes(const bf16* columns,
                                                               float group_scale) noexcept {
  namespace e4m3 = peerbus::detail::e4m3;
  const float32x4_t scale = vdupq_n_f32(group_scale);
  const uint16x8_t bits = load(columns);
  const eight values = widened(bits);
  const uint16x8_t sums = vuzp1q_u16(e4m3_sums(values.low, scale), e4m3_sums(values.high, scale));
  const uint16x8_t codes =
      vminq_u16(vsubq_u16(sums, vdupq_n_u16(e4m3::code_offset)), vdupq_n_u16(e4m3::largest_code));
  const int16x8_t magnitudes = vreinterpretq_s16_u16(vandq_u16(bits, vdupq_n_u16(0x7fff)));
  const uint16x8_t unordered =
      vcgtq_s16(magnitudes, vdupq_n_s16(scalar::largest_ordered(group_scale)));
  return vbslq_u16(vdupq_n_u16(0x7f),
                   vorrq_u16(codes, vandq_u16(unordered, vdupq_n_u16(e4m3::nan_code))),
                   vshrq_n_u16(bits, 8));
}

/// Returns four elements times `scale`. The elements are in the low bytes of the lanes of `codes`.
/// The other bytes are clear.
[[nodiscard, gnu::always_inline]] inline float32x4_t e4m3_values(uint32x4_t codes,
                                                                 float32x4_t scale) noexcept {
  const uint32x4_t magnitude = vandq_u32(codes, vdupq_n_u32(0x7f));
  const uint32x4_t normal = vaddq_u32(vshlq_n_u32(magnitude, 20), vdupq_n_u32(120U << 23));
  const uint32x4_t denormal =
      vreinterpretq_u32_f32(vmulq_f32(vcvtq_f32_u32(magnitude), vdupq_n_f32(0x1p-9F)));
  const uint32x4_t sign = vshlq_n_u32(veorq_u32(codes, magnitude), 24);
  const uint32x4_t value =
      vorrq_u32(vbslq_u32(vcltq_u32(magnitude, vdupq_n_u32(8)), denormal, normal), sign);
  const float32x4_t product = vmulq_f32(vreinterpretq_f32_u32(value), scale);
  const uint32x4_t ordered =
      vbicq_u32(vceqq_f32(product, product), vceqq_u32(magnitude, vdupq_n_u32(0x7f)));
  const uint32x4_t nan = vdupq_n_u32(static_cast<std::uint32_t>(scalar::canonical_nan.bits) << 16);
  return vreinterpretq_f32_u32(vbslq_u32(ordered, vreinterpretq_u32_f32(product), nan));
}

}  // namespace detail

inline void group_magnitude_bits(const bf16* row, std::size_t groups, std::uint16_t* out) noexcept {
  for (std::size_t group = 0; group < groups; ++group)
    out[group] = max_magnitude_bits(row + group * group_columns, group_columns);
}

inline void quantise_e4m3(const bf16* row, const float* scales, std::size_t first,
                          std::size_t groups, std::byte* out) noexcept {
  for (std::size_t group = 0; group < groups; ++group)
#pragma GCC unroll 8
    for (std::size_t lane = 0; lane < group_columns / 16; ++lane) {
      const std::size_t column = (first + group) * group_columns + lane * 16;
      const bf16* const columns = row + column;
      vst1q_u8(reinterpret_cast<std::uint8_t*>(out + column),
               vuzp1q_u8(vreinterpretq_u8_u16(detail::e4m3_codes(columns, scales[group])),
                         vreinterpretq_u8_u16(detail::e4m3_codes(columns + 8, scales[group]))));
    }
}

inline void dequantise_e4m3(const fp8_e4m3* row, const float* scales, std::size_t groups,
                            float* out) noexcept {
  for (std::size_t i = 0; i < groups * group_columns; i += 8) {
    const float32x4_t scale = vdupq_n_f32(scales[i / group_columns]);
    const uint16x8_t codes = vmovl_u8(vld1_u8(reinterpret_cast<const std::uint8_t*>(row + i)));
    vst1q_f32(out + i, detail::e4m3_values(vmovl_u16(vget_low_u16(codes)), scale));
    vst1q_f32(out + i + 4, detail::e4m3_values(vmovl_high_u16(codes), scale));
  }
}

}  // namespace peerbus::kernel::neon

#endif
