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

/// Kernels for AVX-512 F, BW and VL. They use these extensions whatever the compiler's flags are,
/// and must only be called on a CPU that has them. Neighbouring columns are computed separately, as
/// in avx2.hpp. Columns that do not fill a register are processed under a mask, which also keeps
/// the CPU from touching the memory behind them.
///
/// bf16 is rounded with integer instructions, because the conversion instruction of avx512_bf16
/// flushes denormals.
namespace peerbus::kernel::avx512 {

namespace detail {

/// The masks of all lanes, and of the odd lanes. gcc 12 warns of an undefined register in the
/// unmasked form of many intrinsics. A mask that is known to be full costs no instruction.
inline constexpr std::uint8_t all8 = 0xff;
inline constexpr std::uint16_t all16 = 0xffff;
inline constexpr std::uint32_t all32 = 0xffff'ffff;
inline constexpr std::uint64_t all64 = 0xffff'ffff'ffff'ffff;
inline constexpr std::uint32_t odd32 = 0xaaaa'aaaa;

/// Returns the mask of the first `count` of 32 lanes. `count` is 1 to 32.
[[nodiscard]] inline std::uint32_t first32(std::size_t count) noexcept {
  return ~std::uint32_t{0} >> (32U - count);
}

/// Returns the mask of the first `count` of 64 lanes. `count` is 1 to 64.
[[nodiscard]] inline std::uint64_t first64(std::size_t count) noexcept {
  return ~std::uint64_t{0} >> (64U - count);
}

/// Returns the mask of the first `count` of 16 lanes. `count` is 1 to 16.
[[nodiscard]] inline std::uint16_t first16(std::size_t count) noexcept {
  return static_cast<std::uint16_t>(0xffffU >> (16U - count));
}

[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline __m512 even(
    __m512i pairs) noexcept {
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(all16, pairs, 16));
}

[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline __m512 odd(
    __m512i pairs) noexcept {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff'0000U));
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, upper));
}

/// Returns the values of 16 bf16 as f32.
[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline __m512 widened(
    __m256i narrow) noexcept {
  return even(_mm512_maskz_cvtepu16_epi32(all16, narrow));
}

/// Rounds each lane to bf16 in its upper half; the lower half is meaningless. NaN lanes become the
/// lanes of `nan`.
[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline __m512i rounded(
    __m512 value, __m512i nan) noexcept {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i is_odd =
      _mm512_and_si512(_mm512_maskz_srli_epi32(all16, bits, 16), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(is_odd, _mm512_set1_epi32(0x7fff));
  const __mmask16 unordered = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(_mm512_add_epi32(bits, half), unordered, nan);
}

/// Rounds each lane to bf16 in its upper half and makes each NaN quiet, as `bf16` does.
[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline __m512i rounded(
    __m512 value) noexcept {
  const __m512i quiet = _mm512_set1_epi32(0x0040'0000);
  return rounded(value, _mm512_or_si512(_mm512_castps_si512(value), quiet));
}

/// Returns the products of `value` and `inverse`, rounded to integers.
[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline __m512i quantised(
    __m512 value, __m512 inverse) noexcept {
// Without optimisation g++ has a macro here that gives the mask to a parameter of type short.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
  return _mm512_maskz_cvt_roundps_epi32(all16, _mm512_mul_ps(value, inverse),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#pragma GCC diagnostic pop
}

/// Returns the codes of 32 columns in 16 bits each. Of every 8 columns, the even ones come first,
/// then the odd ones.
[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline __m512i quantised_pairs(
    __m512i pairs, __m512 inverse) noexcept {
  return _mm512_maskz_packs_epi32(all32, quantised(even(pairs), inverse),
                                  quantised(odd(pairs), inverse));
}

/// Returns the codes of 64 columns. The packs clamp all codes except -128. They work on each
/// quarter of the registers separately, so that the codes must be put in order afterwards.
[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline __m512i quantised_line(
    __m512i first_pairs, __m512i second_pairs, __m512 inverse) noexcept {
  const __m512i packed = _mm512_maskz_packs_epi16(all64, quantised_pairs(first_pairs, inverse),
                                                  quantised_pairs(second_pairs, inverse));
  const __m512i clamped = _mm512_maskz_max_epi8(all64, packed, _mm512_set1_epi8(-127));
  const __m512i columns = _mm512_set4_epi32(0x0f0b'0e0a, 0x0d09'0c08, 0x0703'0602, 0x0501'0400);
  const __m512i groups = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
  return _mm512_maskz_permutexvar_epi64(all8, groups,
                                        _mm512_maskz_shuffle_epi8(all64, clamped, columns));
}

/// Rounds two registers of sums and joins them to 32 columns.
[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline __m512i joined(
    __m512 even_sums, __m512 odd_sums) noexcept {
  const __m512i nan = _mm512_set1_epi32(scalar::canonical_nan.bits << 16);
  const __m512i low = _mm512_maskz_srli_epi32(all16, rounded(even_sums, nan), 16);
  return _mm512_mask_mov_epi16(low, odd32, rounded(odd_sums, nan));
}

/// Sums `Lanes` registers of 32 columns, beginning at `column`, in one pass over the rows with the
/// sums in registers. It also prefetches the same number of columns beginning at `ahead`. The rows
/// are more streams than the hardware prefetcher follows, and each stream ends after a few pages.
template <std::size_t Lanes>
[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline void sum_block(
    const bf16* const* rows, const float* weights, std::size_t row_count, std::size_t column,
    std::size_t ahead, bf16* out) noexcept {
  __m512 even_sums[Lanes];
  __m512 odd_sums[Lanes];
#pragma GCC unroll 4
  for (std::size_t lane = 0; lane < Lanes; ++lane)
    even_sums[lane] = odd_sums[lane] = _mm512_setzero_ps();
  for (std::size_t row = 0; row < row_count; ++row) {
    const __m512 weight = _mm512_set1_ps(weights[row]);
#pragma GCC unroll 4
    for (std::size_t lane = 0; lane < Lanes; ++lane) {
      _mm_prefetch(reinterpret_cast<const char*>(rows[row] + ahead + lane * 32), _MM_HINT_T0);
      const __m512i pairs = _mm512_loadu_si512(rows[row] + column + lane * 32);
      even_sums[lane] = _mm512_fmadd_ps(weight, even(pairs), even_sums[lane]);
      odd_sums[lane] = _mm512_fmadd_ps(weight, odd(pairs), odd_sums[lane]);
    }
  }
#pragma GCC unroll 4
  for (std::size_t lane = 0; lane < Lanes; ++lane)
    _mm512_storeu_si512(out + column + lane * 32, joined(even_sums[lane], odd_sums[lane]));
}

/// Sums the columns of `mask`. They are at most 32 columns beginning at `column`.
[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline void sum_part(
    const bf16* const* rows, const float* weights, std::size_t row_count, std::size_t column,
    std::uint32_t mask, bf16* out) noexcept {
  __m512 even_sums = _mm512_setzero_ps();
  __m512 odd_sums = _mm512_setzero_ps();
  for (std::size_t row = 0; row < row_count; ++row) {
    const __m512 weight = _mm512_set1_ps(weights[row]);
    const __m512i pairs = _mm512_maskz_loadu_epi16(mask, rows[row] + column);
    even_sums = _mm512_fmadd_ps(weight, even(pairs), even_sums);
    odd_sums = _mm512_fmadd_ps(weight, odd(pairs), odd_sums);
  }
  _mm512_mask_storeu_epi16(out + column, mask, joined(even_sums, odd_sums));
}

}  // namespace detail

[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void weighted_sum(const bf16* const* rows,
                                                                      const float* weights,
                                                                      std::size_t row_count,
                                                                      std::size_t hidden,
                                                                      bf16* out) noexcept {
  constexpr std::size_t block = 128;
  constexpr std::size_t distance = 256;
  std::size_t column = 0;
  for (; column + block <= hidden; column += block) {
    const std::size_t ahead = std::min(column + distance, hidden - block);
    detail::sum_block<block / 32>(rows, weights, row_count, column, ahead, out);
  }
  for (; column < hidden; column += 32) {
    const std::uint32_t mask = detail::first32(std::min<std::size_t>(32, hidden - column));
    detail::sum_part(rows, weights, row_count, column, mask, out);
  }
}

[[nodiscard, gnu::target("avx512f,avx512bw,avx512vl")]] inline std::uint16_t max_magnitude_bits(
    const bf16* row, std::size_t hidden) noexcept {
  const __m512i mask = _mm512_set1_epi16(0x7fff);
  __m512i largest[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  std::size_t i = 0;
  for (; i + 64 <= hidden; i += 64) {
    const __m512i first = _mm512_loadu_si512(row + i);
    const __m512i second = _mm512_loadu_si512(row + i + 32);
    largest[0] = _mm512_max_epi16(largest[0], _mm512_and_si512(first, mask));
    largest[1] = _mm512_max_epi16(largest[1], _mm512_and_si512(second, mask));
  }
  for (; i < hidden; i += 32) {
    const std::uint32_t part = detail::first32(std::min<std::size_t>(32, hidden - i));
    const __m512i last = _mm512_maskz_loadu_epi16(part, row + i);
    largest[0] = _mm512_max_epi16(largest[0], _mm512_and_si512(last, mask));
  }
  alignas(64) std::uint16_t lanes[32];
  _mm512_store_si512(lanes, _mm512_max_epi16(largest[0], largest[1]));
  return *std::max_element(lanes, lanes + 32);
}

[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void quantise_int8(const bf16* row,
                                                                       std::size_t hidden,
                                                                       float inverse_scale,
                                                                       std::byte* out) noexcept {
  const __m512 inverse = _mm512_set1_ps(inverse_scale);
  std::size_t i = 0;
#pragma GCC unroll 4
  for (; i + 64 <= hidden; i += 64)
    _mm512_storeu_si512(out + i, detail::quantised_line(_mm512_loadu_si512(row + i),
                                                        _mm512_loadu_si512(row + i + 32), inverse));
  if (i < hidden) {
    const std::uint64_t mask = detail::first64(hidden - i);
    const auto lower = static_cast<std::uint32_t>(mask);
    const auto upper = static_cast<std::uint32_t>(mask >> 32U);
    const __m512i codes = detail::quantised_line(
        _mm512_maskz_loadu_epi16(lower, row + i),
        _mm512_maskz_loadu_epi16(upper, upper == 0 ? row : row + i + 32), inverse);
    _mm512_mask_storeu_epi8(out + i, mask, codes);
  }
}

[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void dequantise_int8(const std::int8_t* row,
                                                                         std::size_t hidden,
                                                                         float scale,
                                                                         float* out) noexcept {
  const __m512 factor = _mm512_set1_ps(scale);
  std::size_t i = 0;
  for (; i + 16 <= hidden; i += 16) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(row + i));
    const __m512 values =
        _mm512_maskz_cvtepi32_ps(detail::all16, _mm512_maskz_cvtepi8_epi32(detail::all16, codes));
    _mm512_storeu_ps(out + i, _mm512_mul_ps(values, factor));
  }
  if (i < hidden) {
    const std::uint16_t mask = detail::first16(hidden - i);
    const __m512 values = _mm512_maskz_cvtepi32_ps(
        detail::all16,
        _mm512_maskz_cvtepi8_epi32(detail::all16, _mm_maskz_loadu_epi8(mask, row + i)));
    _mm512_mask_storeu_ps(out + i, mask, _mm512_mul_ps(values, factor));
  }
}

[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void widen(const bf16* source,
                                                               std::size_t count,
                                                               float* out) noexcept {
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(source + i));
    _mm512_storeu_ps(out + i, detail::widened(narrow));
  }
  if (i < count) {
    const std::uint16_t mask = detail::first16(count - i);
    const __m256i narrow = _mm256_maskz_loadu_epi16(mask, source + i);
    _mm512_mask_storeu_ps(out + i, mask, detail::widened(narrow));
  }
}

[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void narrow(const float* source,
                                                                std::size_t count,
                                                                bf16* out) noexcept {
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m512i upper =
        _mm512_maskz_srli_epi32(detail::all16, detail::rounded(_mm512_loadu_ps(source + i)), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(out + i),
                        _mm512_maskz_cvtepi32_epi16(detail::all16, upper));
  }
  if (i < count) {
    const std::uint16_t mask = detail::first16(count - i);
    const __m512 values = _mm512_maskz_loadu_ps(mask, source + i);
    const __m512i upper = _mm512_maskz_srli_epi32(detail::all16, detail::rounded(values), 16);
    _mm256_mask_storeu_epi16(out + i, mask, _mm512_maskz_cvtepi32_epi16(detail::all16, upper));
  }
}

[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void stream_lines(const std::byte* source,
                                                                      std::size_t lines,
                                                                      std::byte* out) noexcept {
  for (std::size_t i = 0; i < lines * cache_line_bytes; i += cache_line_bytes)
    _mm512_stream_si512(static_cast<__m512i*>(__builtin_assume_aligned(out + i, sizeof(__m512i))),
                        _mm512_loadu_si512(source + i));
}

}  // namespace peerbus::kernel::avx512

#endif
