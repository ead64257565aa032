// SPDX-License-Identifier: MIT
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/fp8.hpp>
#include <peerbus/kernel/avx2.hpp>
#include <peerbus/kernel/scalar.hpp>

/// The fp8 kernels for AVX2 with FMA. The conditions of avx2.hpp apply.
namespace peerbus::kernel::avx2 {

namespace detail {

[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256i all_lanes(
    std::uint32_t bits) noexcept {
  return _mm256_set1_epi32(static_cast<int>(bits));
}

/// Returns 16 * (1128 + the code of `value` times `scale`). If the product is beyond the largest
/// code, the result is larger than that of the largest code. The constructor of `fp8_e4m3` explains
/// the method.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256i e4m3_sixteenths(
    __m256i value, __m256 scale) noexcept {
  namespace e4m3 = peerbus::detail::e4m3;
  // The sign is cleared here, between the product and the sum, so that no compiler can fuse them.
  const __m256 scaled = _mm256_and_ps(_mm256_mul_ps(_mm256_castsi256_ps(value), scale),
                                      _mm256_castsi256_ps(all_lanes(0x7fff'ffff)));
  const __m256 at_least = _mm256_max_ps(_mm256_set1_ps(e4m3::smallest_normal), scaled);
  const __m256 shift = _mm256_and_ps(_mm256_mul_ps(at_least, _mm256_set1_ps(e4m3::power_to_shift)),
                                     _mm256_castsi256_ps(all_lanes(e4m3::exponent_mask)));
  // The lower half is the mantissa, the upper half 16 times the exponent in steps of 8.
  return _mm256_madd_epi16(_mm256_castps_si256(_mm256_add_ps(scaled, shift)),
                           all_lanes(0x0001'0010));
}

/// Returns 16 codes without their signs, each in 16 bits. Elements whose magnitude bits are above
/// `infinity` give NaN.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256i e4m3_magnitudes(
    __m256i pairs, __m256 scale, __m256i infinity) noexcept {
  namespace e4m3 = peerbus::detail::e4m3;
  const __m256i zero = _mm256_setzero_si256();
  const __m256i low = _mm256_unpacklo_epi16(zero, pairs);
  const __m256i high = _mm256_unpackhi_epi16(zero, pairs);
  const __m256i sixteenths = _mm256_sub_epi16(
      _mm256_packus_epi32(e4m3_sixteenths(low, scale), e4m3_sixteenths(high, scale)),
      _mm256_set1_epi16(16 * e4m3::code_offset));
  const __m256i limited = _mm256_min_epi16(sixteenths, _mm256_set1_epi16(16 * e4m3::largest_code));
  const __m256i magnitudes = _mm256_and_si256(pairs, _mm256_set1_epi16(0x7fff));
  return _mm256_blendv_epi8(_mm256_srli_epi16(limited, 4), _mm256_set1_epi16(e4m3::nan_code),
                            _mm256_cmpgt_epi16(magnitudes, infinity));
}

/// Returns 32 codes from 32 columns.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256i e4m3_codes(
    const bf16* columns, float group_scale) noexcept {
  const __m256 scale = _mm256_set1_ps(group_scale);
  const __m256i infinity = _mm256_set1_epi16(scalar::largest_ordered(group_scale));
  const __m256i first = load(columns);
  const __m256i second = load(columns + 16);
  const __m256i magnitudes = _mm256_packus_epi16(e4m3_magnitudes(first, scale, infinity),
                                                 e4m3_magnitudes(second, scale, infinity));
  const __m256i signs = _mm256_and_si256(_mm256_packs_epi16(first, second), _mm256_set1_epi8(-128));
  // The packs work on each half of the registers separately. The permutation restores the order.
  return _mm256_permute4x64_epi64(_mm256_or_si256(magnitudes, signs), 0b11011000);
}

}  // namespace detail

[[gnu::target("avx2,fma")]] inline void group_magnitude_bits(const bf16* row, std::size_t groups,
                                                             std::uint16_t* out) noexcept {
  const __m256i mask = _mm256_set1_epi16(0x7fff);
  for (std::size_t group = 0; group < groups; ++group) {
    const bf16* const columns = row + group * group_columns;
    __m256i largest = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (std::size_t i = 0; i < group_columns; i += 16)
      largest = _mm256_max_epi16(largest, _mm256_and_si256(detail::load(columns + i), mask));
    const __m128i half =
        _mm_max_epi16(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    // An instruction exists for the smallest of eight values, so the bits are inverted around it.
    const __m128i smallest = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1)));
    out[group] = static_cast<std::uint16_t>(~_mm_cvtsi128_si32(smallest));
  }
}

[[gnu::target("avx2,fma")]] inline void quantise_e4m3(const bf16* row, const float* scales,
                                                      std::size_t first, std::size_t groups,
                                                      std::byte* out) noexcept {
  for (std::size_t group = 0; group < groups; ++group)
#pragma GCC unroll 4
    for (std::size_t lane = 0; lane < group_columns / 32; ++lane) {
      const std::size_t column = (first + group) * group_columns + lane * 32;
      _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(out + column),
                          detail::e4m3_codes(row + column, scales[group]));
    }
}

[[gnu::target("avx2,fma")]] inline void dequantise_e4m3(const fp8_e4m3* row, const float* scales,
                                                        std::size_t groups, float* out) noexcept {
  const __m256i nan = detail::all_lanes(scalar::canonical_nan.bits << 16);
  for (std::size_t i = 0; i < groups * group_columns; i += 8) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(row + i));
    const __m256i codes = _mm256_cvtepu8_epi32(bytes);
    const __m256i magnitude = _mm256_and_si256(codes, detail::all_lanes(0x7f));
    const __m256i normal =
        _mm256_add_epi32(_mm256_slli_epi32(magnitude, 20), detail::all_lanes(120U << 23));
    const __m256 denormal = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(0x1p-9F));
    const __m256i small = _mm256_cmpgt_epi32(detail::all_lanes(8), magnitude);
    const __m256i sign = _mm256_slli_epi32(_mm256_xor_si256(codes, magnitude), 24);
    const __m256i value =
        _mm256_or_si256(_mm256_blendv_epi8(normal, _mm256_castps_si256(denormal), small), sign);
    const __m256 product =
        _mm256_mul_ps(_mm256_castsi256_ps(value), _mm256_set1_ps(scales[i / group_columns]));
    const __m256i unordered =
        _mm256_or_si256(_mm256_castps_si256(_mm256_cmp_ps(product, product, _CMP_UNORD_Q)),
                        _mm256_cmpeq_epi32(magnitude, detail::all_lanes(0x7f)));
    _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(out + i),
                        _mm256_blendv_epi8(_mm256_castps_si256(product), nan, unordered));
  }
}

}  // namespace peerbus::kernel::avx2

#endif
