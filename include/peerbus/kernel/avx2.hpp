// SPDX-License-Identifier: MIT
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <peerbus/core/align.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/scalar.hpp>

/// Kernels for AVX2 with FMA. They use these extensions whatever the compiler's flags are, and must
/// only be called on a CPU that has both.
///
/// A 32-bit lane loaded from a row holds two neighbouring columns. Clearing the lower half turns
/// the odd column into a float, and shifting the lane up does so for the even column. Both are
/// computed separately, which needs no shuffle. The two results are put back into one lane in the
/// same manner.
namespace peerbus::kernel::avx2 {

namespace detail {

[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256i load(const void* address) noexcept {
  return _mm256_loadu_si256(static_cast<const __m256i_u*>(address));
}

/// Returns `address` as a vector pointer. `address` is a multiple of the size of a vector.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256i* aligned(void* address) noexcept {
  return static_cast<__m256i*>(__builtin_assume_aligned(address, sizeof(__m256i)));
}

[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256 even(__m256i pairs) noexcept {
  return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}

[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256 odd(__m256i pairs) noexcept {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff'0000U));
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, upper));
}

/// Returns the 8 values from `source` on as f32.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256 widened(const bf16* source) noexcept {
  return even(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(source))));
}

/// Rounds each lane to bf16 in its upper half; the lower half is meaningless. NaN lanes become the
/// lanes of `nan`.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256i rounded(__m256 value,
                                                                       __m256i nan) noexcept {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(is_odd, _mm256_set1_epi32(0x7fff));
  const __m256 unordered = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
  return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(_mm256_add_epi32(bits, half)),
                                              _mm256_castsi256_ps(nan), unordered));
}

/// Rounds each lane to bf16 in its upper half and makes each NaN quiet, as `bf16` does.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256i rounded(__m256 value) noexcept {
  const __m256i quiet = _mm256_set1_epi32(0x0040'0000);
  return rounded(value, _mm256_or_si256(_mm256_castps_si256(value), quiet));
}

/// Returns the codes of 16 columns in 16 bits each. Of every 8 columns, the even ones come first,
/// then the odd ones.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256i quantised_pairs(
    const bf16* row, __m256 inverse) noexcept {
  const __m256i pairs = load(row);
  return _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(even(pairs), inverse)),
                            _mm256_cvtps_epi32(_mm256_mul_ps(odd(pairs), inverse)));
}

/// Returns the codes of 32 columns. The packs clamp all codes except -128. They work on each half
/// of the registers separately, so that the codes must be put in order afterwards.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256i quantised_block(
    const bf16* row, __m256 inverse) noexcept {
  const __m256i packed =
      _mm256_packs_epi16(quantised_pairs(row, inverse), quantised_pairs(row + 16, inverse));
  const __m256i clamped = _mm256_max_epi8(packed, _mm256_set1_epi8(-127));
  const __m256i columns = _mm256_setr_epi32(0x0501'0400, 0x0703'0602, 0x0d09'0c08, 0x0f0b'0e0a,  //
                                            0x0501'0400, 0x0703'0602, 0x0d09'0c08, 0x0f0b'0e0a);
  return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(clamped, columns), 0b11011000);
}

/// Sums `Lanes` registers of 16 columns, beginning at `column`, in one pass over the rows with the
/// sums in registers. It also prefetches the same number of columns beginning at `ahead`. The rows
/// are more streams than the hardware prefetcher follows, and each stream ends after a few pages.
template <std::size_t Lanes>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline void sum_block(
    const bf16* const* rows, const float* weights, std::size_t row_count, std::size_t column,
    std::size_t ahead, bf16* out) noexcept {
  __m256 even_sums[Lanes];
  __m256 odd_sums[Lanes];
#pragma GCC unroll 4
  for (std::size_t lane = 0; lane < Lanes; ++lane)
    even_sums[lane] = odd_sums[lane] = _mm256_setzero_ps();
  for (std::size_t row = 0; row < row_count; ++row) {
    const __m256 weight = _mm256_set1_ps(weights[row]);
#pragma GCC unroll 4
    for (std::size_t lane = 0; lane < Lanes; ++lane) {
      if (lane % 2 == 0)
        _mm_prefetch(reinterpret_cast<const char*>(rows[row] + ahead + lane * 16), _MM_HINT_T0);
      const __m256i pairs = load(rows[row] + column + lane * 16);
      even_sums[lane] = _mm256_fmadd_ps(weight, even(pairs), even_sums[lane]);
      odd_sums[lane] = _mm256_fmadd_ps(weight, odd(pairs), odd_sums[lane]);
    }
  }
  const __m256i nan = _mm256_set1_epi32(scalar::canonical_nan.bits << 16);
#pragma GCC unroll 4
  for (std::size_t lane = 0; lane < Lanes; ++lane) {
    const __m256i low = _mm256_srli_epi32(rounded(even_sums[lane], nan), 16);
    const __m256i high = rounded(odd_sums[lane], nan);
    _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(out + column + lane * 16),
                        _mm256_blend_epi16(low, high, 0b10101010));
  }
}

}  // namespace detail

[[gnu::target("avx2,fma")]] inline void weighted_sum(const bf16* const* rows, const float* weights,
                                                     std::size_t row_count, std::size_t hidden,
                                                     bf16* out) noexcept {
  constexpr std::size_t block = 64;
  constexpr std::size_t distance = 256;
  std::size_t column = 0;
  for (; column + block <= hidden; column += block) {
    const std::size_t ahead = std::min(column + distance, hidden - block);
    detail::sum_block<block / 16>(rows, weights, row_count, column, ahead, out);
  }
  for (; column + 16 <= hidden; column += 16)
    detail::sum_block<1>(rows, weights, row_count, column, column, out);
  scalar::weighted_sum_columns(rows, weights, row_count, column, hidden, out);
}

[[nodiscard, gnu::target("avx2,fma")]] inline std::uint16_t max_magnitude_bits(
    const bf16* row, std::size_t hidden) noexcept {
  const __m256i mask = _mm256_set1_epi16(0x7fff);
  __m256i largest[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  std::size_t i = 0;
  for (; i + 32 <= hidden; i += 32) {
    largest[0] = _mm256_max_epi16(largest[0], _mm256_and_si256(detail::load(row + i), mask));
    largest[1] = _mm256_max_epi16(largest[1], _mm256_and_si256(detail::load(row + i + 16), mask));
  }
  alignas(32) std::uint16_t lanes[16];
  _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(lanes),
                      _mm256_max_epi16(largest[0], largest[1]));
  std::uint16_t result = scalar::max_magnitude_bits(row + i, hidden - i);
  for (const std::uint16_t lane : lanes) result = lane > result ? lane : result;
  return result;
}

[[gnu::target("avx2,fma")]] inline void quantise_int8(const bf16* row, std::size_t hidden,
                                                      float inverse_scale,
                                                      std::byte* out) noexcept {
  const __m256 inverse = _mm256_set1_ps(inverse_scale);
  std::size_t i = 0;
#pragma GCC unroll 4
  for (; i + 32 <= hidden; i += 32)
    _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(out + i),
                        detail::quantised_block(row + i, inverse));
  scalar::quantise_int8_columns(row, inverse_scale, i, hidden, out);
}

[[gnu::target("avx2,fma")]] inline void dequantise_int8(const std::int8_t* row, std::size_t hidden,
                                                        float scale, float* out) noexcept {
  const __m256 factor = _mm256_set1_ps(scale);
  std::size_t i = 0;
  for (; i + 8 <= hidden; i += 8) {
    const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(row + i));
    const __m256 values = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
    _mm256_storeu_ps(out + i, _mm256_mul_ps(values, factor));
  }
  scalar::dequantise_int8(row + i, hidden - i, scale, out + i);
}

[[gnu::target("avx2,fma")]] inline void widen(const bf16* source, std::size_t count,
                                              float* out) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(out + i, detail::widened(source + i));
  }
  scalar::widen(source + i, count - i, out + i);
}

[[gnu::target("avx2,fma")]] inline void narrow(const float* source, std::size_t count,
                                               bf16* out) noexcept {
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i low = _mm256_srli_epi32(detail::rounded(_mm256_loadu_ps(source + i)), 16);
    const __m256i high = _mm256_srli_epi32(detail::rounded(_mm256_loadu_ps(source + i + 8)), 16);
    const __m256i packed = _mm256_packus_epi32(low, high);
    _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(out + i),
                        _mm256_permute4x64_epi64(packed, 0b11011000));
  }
  scalar::narrow(source + i, count - i, out + i);
}

[[gnu::target("avx2,fma")]] inline void stream_lines(const std::byte* source, std::size_t lines,
                                                     std::byte* out) noexcept {
  for (std::size_t i = 0; i < lines * cache_line_bytes; i += cache_line_bytes) {
    const __m256i first = detail::load(source + i);
    const __m256i second = detail::load(source + i + 32);
    _mm256_stream_si256(detail::aligned(out + i), first);
    _mm256_stream_si256(detail::aligned(out + i + 32), second);
  }
}

}  // namespace peerbus::kernel::avx2

#endif
