// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/fp8.hpp>
#include <peerbus/kernel/avx2.hpp>
#include <peerbus/kernel/avx2_e4m3.hpp>
#include <peerbus/kernel/avx512.hpp>
#include <peerbus/kernel/avx512_e4m3.hpp>
#include <peerbus/kernel/neon.hpp>
#include <peerbus/kernel/neon_e4m3.hpp>
#include <peerbus/kernel/scalar.hpp>

namespace peerbus::kernel {

/// Row arithmetic for one instruction set, chosen when the program runs, so that a build with
/// default flags is as fast as the machine allows.
///
/// Every set gives the same bits for the same arguments, so ranks on unlike CPUs agree. That holds
/// in the default floating-point environment (round to nearest, denormals kept) and without flags
/// such as -ffast-math, which give up the rules of IEEE 754.
///
/// All functions: pointers need only the alignment of their type; sources and destinations do not
/// overlap; nothing outside the stated elements is read or written; a count of 0 is allowed. Any
/// number of threads may call at once.
struct kernel_set {
  const char* name;

  /// out[j] = the bf16 nearest to s, where s = 0 and then, for each row r in order,
  /// s = fma(weights[r], rows[r][j], s) in f32. A sum that is NaN gives 0x7fc0, whichever NaN went
  /// in. No rows give +0. `rows` holds `row_count` pointers to `hidden` elements each.
  void (*weighted_sum)(const bf16* const* rows, const float* weights, std::size_t row_count,
                       std::size_t hidden, bf16* out) noexcept;

  /// The largest representation without its sign, which orders finite numbers, then infinity
  /// (0x7f80), then the NaNs. 0 for an empty row.
  std::uint16_t (*max_magnitude_bits)(const bf16* row, std::size_t hidden) noexcept;

  /// The f32 product of each element and `inverse_scale`, rounded to an integer, ties to even, and
  /// clamped to [-127, 127]. A product that is NaN gives 0. The codes are computed once and stored
  /// at each of the `copies` places `outs`, which may lie in the memory of peers: arithmetic then
  /// overlaps with stores that wait for their cache lines.
  void (*quantise_int8)(const bf16* row, std::size_t hidden, float inverse_scale,
                        std::byte* const* outs, std::size_t copies) noexcept;

  /// The f32 product of each element and `scale`. 0 times infinity is the CPU's own NaN.
  void (*dequantise_int8)(const std::int8_t* row, std::size_t hidden, float scale,
                          float* out) noexcept;

  /// out[g] = the largest representation without its sign among the columns of group g, of
  /// `group_columns` each, ordered as for `max_magnitude_bits`.
  void (*group_magnitude_bits)(const bf16* row, std::size_t groups, std::uint16_t* out) noexcept;

  /// The groups [first, first + groups) of a row: the f32 product of each element's magnitude and
  /// its group's scale, of which `scales` has `groups`, rounded as the constructor of `fp8_e4m3`
  /// rounds, with the sign of the element. So a product that is NaN gives 0x7f or 0xff. Scales are
  /// finite and above 0, or NaN. The codes are computed once and stored at each of the `copies`
  /// places `outs`, which are those of the whole row and may lie in the memory of peers.
  void (*quantise_e4m3)(const bf16* row, const float* scales, std::size_t first, std::size_t groups,
                        std::byte* const* outs, std::size_t copies) noexcept;

  /// The f32 product of each element of `groups` groups and its group's scale. A product that is
  /// NaN gives 0x7fc00000, whichever NaN went in.
  void (*dequantise_e4m3)(const fp8_e4m3* row, const float* scales, std::size_t groups,
                          float* out) noexcept;

  /// Exact, NaN payloads included.
  void (*widen)(const bf16* from, std::size_t count, float* out) noexcept;

  /// As the constructor of `bf16` rounds.
  void (*narrow)(const float* from, std::size_t count, bf16* out) noexcept;
};

namespace detail {

inline constexpr kernel_set scalar_set{"scalar",
                                       &scalar::weighted_sum,
                                       &scalar::max_magnitude_bits,
                                       &scalar::quantise_int8,
                                       &scalar::dequantise_int8,
                                       &scalar::group_magnitude_bits,
                                       &scalar::quantise_e4m3,
                                       &scalar::dequantise_e4m3,
                                       &scalar::widen,
                                       &scalar::narrow};

#if defined(__x86_64__)
inline constexpr kernel_set avx2_set{"avx2",
                                     &avx2::weighted_sum,
                                     &avx2::max_magnitude_bits,
                                     &avx2::quantise_int8,
                                     &avx2::dequantise_int8,
                                     &avx2::group_magnitude_bits,
                                     &avx2::quantise_e4m3,
                                     &avx2::dequantise_e4m3,
                                     &avx2::widen,
                                     &avx2::narrow};

inline constexpr kernel_set avx512_set{"avx512",
                                       &avx512::weighted_sum,
                                       &avx512::max_magnitude_bits,
                                       &avx512::quantise_int8,
                                       &avx512::dequantise_int8,
                                       &avx512::group_magnitude_bits,
                                       &avx512::quantise_e4m3,
                                       &avx512::dequantise_e4m3,
                                       &avx512::widen,
                                       &avx512::narrow};
#elif defined(__aarch64__)
inline constexpr kernel_set neon_set{"neon",
                                     &neon::weighted_sum,
                                     &neon::max_magnitude_bits,
                                     &neon::quantise_int8,
                                     &neon::dequantise_int8,
                                     &neon::group_magnitude_bits,
                                     &neon::quantise_e4m3,
                                     &neon::dequantise_e4m3,
                                     &neon::widen,
                                     &neon::narrow};
#endif

struct available_sets {
  std::array<const kernel_set*, 3> sets{};
  std::size_t count = 0;

  void add(const kernel_set& set) noexcept { sets[count++] = &set; }

  /// A set for another architecture joins here, after `scalar_set`, under that architecture's
  /// `#if`.
  available_sets() noexcept {
    add(scalar_set);
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) add(avx2_set);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
      add(avx512_set);
#elif defined(__aarch64__)
    add(neon_set);  // Part of every AArch64.
#endif
  }
};

}  // namespace detail

/// Every set that this CPU and operating system can run, slowest first; the first is the scalar
/// reference. For tests and benchmarks.
[[nodiscard]] inline std::span<const kernel_set* const> available() noexcept {
  static const detail::available_sets found;
  return std::span{found.sets}.first(found.count);
}

/// The fastest set that this CPU runs; the same object at each call.
[[nodiscard]] inline const kernel_set& best() noexcept { return *available().back(); }

}  // namespace peerbus::kernel
