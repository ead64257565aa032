// SPDX-License-Identifier: MIT
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/fp8.hpp>
#include <peerbus/kernel/avx512.hpp>
#include <peerbus/kernel/scalar.hpp>

/// The fp8 kernels for AVX-512. The conditions of avx512.hpp apply.
namespace peerbus::kernel::avx512 {

namespace detail {

[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline __m512i all_lanes(
    std::uint32_t bits) noexcept {
  return _mm512_set1_epi32(static_cast<int>(bits));
}

/// Returns 16 * (1128 + the code of `magnitude` times `scale`). If the product is beyond the
/// largest code, the result is larger than that of the largest code. The constructor of `fp8_e4m3`
/// explains the method.
[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline __m512i e4m3_sixteenths(
    __m512 magnitude, __m512 scale) noexcept {
  namespace e4m3 = peerbus::detail::e4m3;
  const __m512 scaled = _mm512_mul_ps(magnitude, scale);
  const __m512 at_least = _mm512_maskz_max_ps(all16, _mm512_set1_ps(e4m3::smallest_normal), scaled);
  const __m512i shift = _mm512_and_si512(
      _mm512_castps_si512(_mm512_mul_ps(at_least, _mm512_set1_ps(e4m3::power_to_shift))),
      all_lanes(e4m3::exponent_mask));
  // This form names the rounding mode, so that no compiler fuses the sum with the product.
// Without optimisation g++ has a macro here that gives the mask to a parameter of type short.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
  const __m512 sum = _mm512_maskz_add_round_ps(all16, scaled, _mm512_castsi512_ps(shift),
                                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#pragma GCC diagnostic pop
  // The lower half is the mantissa, the upper half 16 times the exponent in steps of 8.
  return _mm512_madd_epi16(_mm512_castps_si512(sum), all_lanes(0x0001'0010));
}

/// Returns 32 codes without their signs, each in 16 bits. Elements whose magnitude bits are above
/// `infinity` give NaN.
[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline __m512i e4m3_magnitudes(
    __m512i pairs, __m512 scale, __m512i infinity) noexcept {
  namespace e4m3 = peerbus::detail::e4m3;
  const __m512i zero = _mm512_setzero_si512();
  const __m512i magnitudes = _mm512_and_si512(pairs, _mm512_set1_epi16(0x7fff));
  const __m512 low = _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, magnitudes));
  const __m512 high = _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, magnitudes));
  const __m512i sixteenths = _mm512_sub_epi16(
      _mm512_packus_epi32(e4m3_sixteenths(low, scale), e4m3_sixteenths(high, scale)),
      _mm512_set1_epi16(16 * e4m3::code_offset));
  const __mmask32 ordered = _mm512_cmple_epi16_mask(magnitudes, infinity);
  return _mm512_mask_srli_epi16(
      _mm512_set1_epi16(e4m3::nan_code), ordered,
      _mm512_min_epi16(sixteenths, _mm512_set1_epi16(16 * e4m3::largest_code)), 4);
}

/// Returns 64 codes from 64 columns.
[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline __m512i e4m3_codes(
    const bf16* columns, float group_scale) noexcept {
  const __m512 scale = _mm512_set1_ps(group_scale);
  const __m512i infinity = _mm512_set1_epi16(scalar::largest_ordered(group_scale));
  const __m512i first = _mm512_loadu_si512(columns);
  const __m512i second = _mm512_loadu_si512(columns + 32);
  const __m512i magnitudes = _mm512_packus_epi16(e4m3_magnitudes(first, scale, infinity),
                                                 e4m3_magnitudes(second, scale, infinity));
  const __m512i signs = _mm512_packs_epi16(first, second);
  constexpr int choose = 0xca;  // A 1 in the first operand selects the second, a 0 the third.
  const __m512i codes =
      _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x7f), magnitudes, signs, choose);
  // The packs work on each quarter of the registers separately. The permutation restores the order.
  return _mm512_maskz_permutexvar_epi64(all8, _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), codes);
}

}  // namespace detail

[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void group_magnitude_bits(
    const bf16* row, std::size_t groups, std::uint16_t* out) noexcept {
  const __m512i mask = _mm512_set1_epi16(0x7fff);
  for (std::size_t group = 0; group < groups; ++group) {
    const bf16* const columns = row + group * group_columns;
    __m512i largest = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (std::size_t i = 0; i < group_columns; i += 32)
      largest = _mm512_max_epi16(largest, _mm512_and_si512(_mm512_loadu_si512(columns + i), mask));
    const __m256i half =
        _mm256_max_epi16(_mm512_maskz_extracti64x4_epi64(detail::all8, largest, 0),
                         _mm512_maskz_extracti64x4_epi64(detail::all8, largest, 1));
    const __m128i quarter =
        _mm_max_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    // An instruction exists for the smallest of eight values, so the bits are inverted around it.
    const __m128i ones = _mm_set1_epi16(-1);
    const __m128i smallest = _mm_minpos_epu16(_mm_xor_si128(quarter, ones));
    out[group] = static_cast<std::uint16_t>(~_mm_cvtsi128_si32(smallest));
  }
}

[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void quantise_e4m3(const bf16* row,
                                                                       const float* scales,
                                                                       std::size_t first,
                                                                       std::size_t groups,
                                                                       std::byte* out) noexcept {
  for (std::size_t group = 0; group < groups; ++group)
#pragma GCC unroll 2
    for (std::size_t lane = 0; lane < group_columns / 64; ++lane) {
      const std::size_t column = (first + group) * group_columns + lane * 64;
      _mm512_storeu_si512(out + column, detail::e4m3_codes(row + column, scales[group]));
    }
}

[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void dequantise_e4m3(const fp8_e4m3* row,
                                                                         const float* scales,
                                                                         std::size_t groups,
                                                                         float* out) noexcept {
  using detail::all16;
  const __m512i nan = detail::all_lanes(scalar::canonical_nan.bits << 16);
  for (std::size_t i = 0; i < groups * group_columns; i += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(row + i));
    const __m512i codes = _mm512_maskz_cvtepu8_epi32(all16, bytes);
    const __m512i magnitude = _mm512_and_si512(codes, detail::all_lanes(0x7f));
    const __m512i normal = _mm512_add_epi32(_mm512_maskz_slli_epi32(all16, magnitude, 20),
                                            detail::all_lanes(120U << 23));
    const __m512 denormal =
        _mm512_mul_ps(_mm512_maskz_cvtepi32_ps(all16, magnitude), _mm512_set1_ps(0x1p-9F));
    const __mmask16 small = _mm512_cmplt_epi32_mask(magnitude, detail::all_lanes(8));
    const __m512i sign = _mm512_maskz_slli_epi32(all16, _mm512_xor_si512(codes, magnitude), 24);
    const __m512i value =
        _mm512_or_si512(_mm512_mask_mov_epi32(normal, small, _mm512_castps_si512(denormal)), sign);
    const __m512 product =
        _mm512_mul_ps(_mm512_castsi512_ps(value), _mm512_set1_ps(scales[i / group_columns]));
    const auto unordered =
        static_cast<__mmask16>(_mm512_cmp_ps_mask(product, product, _CMP_UNORD_Q) |
                               _mm512_cmpeq_epi32_mask(magnitude, detail::all_lanes(0x7f)));
    _mm512_storeu_si512(out + i,
                        _mm512_mask_mov_epi32(_mm512_castps_si512(product), unordered, nan));
  }
}

}  // namespace peerbus::kernel::avx512

#endif
