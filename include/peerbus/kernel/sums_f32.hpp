// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/avx2.hpp>
#include <peerbus/kernel/avx512.hpp>
#include <peerbus/kernel/neon.hpp>

// `kernel_set::weighted_sum_f32` of all sets.

namespace peerbus::kernel::scalar {

/// Computes the columns [begin, end) of `weighted_sum_f32`. Other sets call it for the columns that
/// do not fill a register.
inline void weighted_sum_f32_columns(const bf16* const* rows, const float* weights,
                                     std::size_t row_count, std::size_t begin, std::size_t end,
                                     float* out) noexcept {
  std::fill(out + begin, out + end, 0.0F);
  for (std::size_t row = 0; row < row_count; ++row)
    for (std::size_t i = begin; i < end; ++i)
      out[i] = __builtin_fmaf(weights[row], static_cast<float>(rows[row][i]), out[i]);
}

/// Implements `kernel_set::weighted_sum_f32` for the scalar set.
inline void weighted_sum_f32(const bf16* const* rows, const float* weights, std::size_t row_count,
                             std::size_t hidden, float* out) noexcept {
  weighted_sum_f32_columns(rows, weights, row_count, 0, hidden, out);
}

}  // namespace peerbus::kernel::scalar

#if defined(__x86_64__)

namespace peerbus::kernel::avx2 {

[[gnu::target("avx2,fma")]] inline void weighted_sum_f32(const bf16* const* rows,
                                                         const float* weights,
                                                         std::size_t row_count, std::size_t hidden,
                                                         float* out) noexcept {
  std::size_t column = 0;
  for (; column + 8 <= hidden; column += 8) {
    __m256 sums = _mm256_setzero_ps();
    for (std::size_t row = 0; row < row_count; ++row) {
      const __m256 values = detail::widened(rows[row] + column);
      sums = _mm256_fmadd_ps(_mm256_set1_ps(weights[row]), values, sums);
    }
    _mm256_storeu_ps(out + column, sums);
  }
  scalar::weighted_sum_f32_columns(rows, weights, row_count, column, hidden, out);
}

}  // namespace peerbus::kernel::avx2

namespace peerbus::kernel::avx512 {

[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void weighted_sum_f32(const bf16* const* rows,
                                                                          const float* weights,
                                                                          std::size_t row_count,
                                                                          std::size_t hidden,
                                                                          float* out) noexcept {
  for (std::size_t column = 0; column < hidden; column += 16) {
    const std::uint16_t mask = detail::first16(std::min<std::size_t>(16, hidden - column));
    __m512 sums = _mm512_setzero_ps();
    for (std::size_t row = 0; row < row_count; ++row) {
      const __m512 values = detail::widened(_mm256_maskz_loadu_epi16(mask, rows[row] + column));
      sums = _mm512_fmadd_ps(_mm512_set1_ps(weights[row]), values, sums);
    }
    _mm512_mask_storeu_ps(out + column, mask, sums);
  }
}

}  // namespace peerbus::kernel::avx512

#elif defined(__aarch64__)

namespace peerbus::kernel::neon {

inline void weighted_sum_f32(const bf16* const* rows, const float* weights, std::size_t row_count,
                             std::size_t hidden, float* out) noexcept {
  std::size_t column = 0;
  for (; column + 8 <= hidden; column += 8) {
    float32x4_t low = vdupq_n_f32(0.0F);
    float32x4_t high = low;
    for (std::size_t row = 0; row < row_count; ++row) {
      const float32x4_t weight = vdupq_n_f32(weights[row]);
      const detail::eight values = detail::widened(detail::load(rows[row] + column));
      low = vfmaq_f32(low, weight, values.low);
      high = vfmaq_f32(high, weight, values.high);
    }
    vst1q_f32(out + column, low);
    vst1q_f32(out + column + 4, high);
  }
  scalar::weighted_sum_f32_columns(rows, weights, row_count, column, hidden, out);
}

}  // namespace peerbus::kernel::neon

#endif
