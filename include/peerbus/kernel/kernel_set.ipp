// SPDX-License-Identifier: MIT
#pragma once

#include <array>

#include <peerbus/kernel/avx2.hpp>
#include <peerbus/kernel/avx2_e4m3.hpp>
#include <peerbus/kernel/avx512.hpp>
#include <peerbus/kernel/avx512_e4m3.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/kernel/log_sets.hpp>
#include <peerbus/kernel/logarithm.hpp>
#include <peerbus/kernel/neon.hpp>
#include <peerbus/kernel/neon_e4m3.hpp>
#include <peerbus/kernel/scalar.hpp>
#include <peerbus/kernel/sums_f32.hpp>

namespace peerbus::kernel {

namespace detail {

inline constexpr kernel_set scalar_set{"scalar",
                                       &scalar::weighted_sum,
                                       &scalar::weighted_sum_f32,
                                       &scalar::max_magnitude_bits,
                                       &scalar::quantise_int8,
                                       &scalar::dequantise_int8,
                                       &scalar::group_magnitude_bits,
                                       &scalar::quantise_e4m3,
                                       &scalar::dequantise_e4m3,
                                       &scalar::widen,
                                       &scalar::narrow,
                                       &logarithm::log2_magnitudes,
                                       &logarithm::log_codes,
                                       &logarithm::log_values,
                                       &scalar::stream_lines};

#if defined(__x86_64__)
inline constexpr kernel_set avx2_set{"avx2",
                                     &avx2::weighted_sum,
                                     &avx2::weighted_sum_f32,
                                     &avx2::max_magnitude_bits,
                                     &avx2::quantise_int8,
                                     &avx2::dequantise_int8,
                                     &avx2::group_magnitude_bits,
                                     &avx2::quantise_e4m3,
                                     &avx2::dequantise_e4m3,
                                     &avx2::widen,
                                     &avx2::narrow,
                                     &avx2::log2_magnitudes,
                                     &avx2::log_codes,
                                     &avx2::log_values,
                                     &avx2::stream_lines};

inline constexpr kernel_set avx512_set{"avx512",
                                       &avx512::weighted_sum,
                                       &avx512::weighted_sum_f32,
                                       &avx512::max_magnitude_bits,
                                       &avx512::quantise_int8,
                                       &avx512::dequantise_int8,
                                       &avx512::group_magnitude_bits,
                                       &avx512::quantise_e4m3,
                                       &avx512::dequantise_e4m3,
                                       &avx512::widen,
                                       &avx512::narrow,
                                       &avx512::log2_magnitudes,
                                       &avx512::log_codes,
                                       &avx512::log_values,
                                       &avx512::stream_lines};
#elif defined(__aarch64__)
inline constexpr kernel_set neon_set{"neon",
                                     &neon::weighted_sum,
                                     &neon::weighted_sum_f32,
                                     &neon::max_magnitude_bits,
                                     &neon::quantise_int8,
                                     &neon::dequantise_int8,
                                     &neon::group_magnitude_bits,
                                     &neon::quantise_e4m3,
                                     &neon::dequantise_e4m3,
                                     &neon::widen,
                                     &neon::narrow,
                                     &logarithm::log2_magnitudes,
                                     &logarithm::log_codes,
                                     &logarithm::log_values,
                                     &neon::stream_lines};
#endif

struct available_sets {
  std::array<const kernel_set*, 3> sets{};
  std::size_t count = 0;

  void add(const kernel_set& set) noexcept { sets[count++] = &set; }

  /// Finds the sets that this CPU can run. A set for another architecture is added here, after
  /// `scalar_set`, under that architecture's `#if`.
  available_sets() noexcept {
    add(scalar_set);
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) add(avx2_set);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
      add(avx512_set);
#elif defined(__aarch64__)
    add(neon_set);  // Every AArch64 CPU has it.
#endif
  }
};

}  // namespace detail

PEERBUS_INLINE std::span<const kernel_set* const> available() noexcept {
  static const detail::available_sets found;
  return std::span{found.sets}.first(found.count);
}

PEERBUS_INLINE const kernel_set& best() noexcept { return *available().back(); }

}  // namespace peerbus::kernel
