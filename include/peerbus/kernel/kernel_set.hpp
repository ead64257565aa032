// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/fp8.hpp>

/// The row arithmetic of codecs and of combine, for each instruction set.
namespace peerbus::kernel {

/// Row arithmetic for one instruction set. The set is chosen when the program runs, so that a build
/// with default flags is as fast as the machine allows.
///
/// Every set gives the same bits for the same arguments, so that ranks on different CPUs agree.
/// This holds in the default floating-point environment (round to nearest, denormals kept) and
/// without flags such as -ffast-math, which give up the rules of IEEE 754.
///
/// For all functions: pointers need only the alignment of their type. Sources and destinations do
/// not overlap. Nothing outside the stated elements is read or written. A count of 0 is allowed.
/// Cost: one pass over each row. No allocation.
/// Threads: any number of threads may call at once.
struct kernel_set {
  /// The instruction set, such as "avx2", for reports.
  const char* name;

  /// Sums weighted rows: out[j] is the bf16 nearest to s, where s begins at 0 and becomes
  /// fma(weights[r], rows[r][j], s) in f32 for each row r in order. `rows` holds `row_count`
  /// pointers to `hidden` elements each. Without rows the result is +0. A sum that is NaN gives
  /// 0x7fc0, whatever NaN caused it.
  void (*weighted_sum)(const bf16* const* rows, const float* weights, std::size_t row_count,
                       std::size_t hidden, bf16* out) noexcept;

  /// Sums weighted rows as `weighted_sum` does, and writes the sums in f32. A sum that is NaN may
  /// be any NaN.
  void (*weighted_sum_f32)(const bf16* const* rows, const float* weights, std::size_t row_count,
                           std::size_t hidden, float* out) noexcept;

  /// Returns the largest representation of an element without its sign, or 0 for an empty row. In
  /// this order come finite numbers, then infinity (0x7f80), then the NaNs.
  std::uint16_t (*max_magnitude_bits)(const bf16* row, std::size_t hidden) noexcept;

  /// Quantises a row: each code is the f32 product of an element and `inverse_scale`, rounded to an
  /// integer, ties to even, and clamped to [-127, 127]. The products must be finite and of a
  /// magnitude below 2^31. They are if the scale is made from the largest magnitude of the row.
  void (*quantise_int8)(const bf16* row, std::size_t hidden, float inverse_scale,
                        std::byte* out) noexcept;

  /// Writes the f32 product of each element and `scale`. 0 times infinity gives the CPU's own NaN.
  void (*dequantise_int8)(const std::int8_t* row, std::size_t hidden, float scale,
                          float* out) noexcept;

  /// Writes to out[g] the largest representation, without its sign, of the `group_columns` columns
  /// of group g. The order is that of `max_magnitude_bits`.
  void (*group_magnitude_bits)(const bf16* row, std::size_t groups, std::uint16_t* out) noexcept;

  /// Quantises the groups [first, first + groups) of a row. Each code is the f32 product of an
  /// element's magnitude and its group's scale, rounded as the constructor of `fp8_e4m3` rounds,
  /// with the sign of the element. A product that is NaN therefore gives 0x7f or 0xff. `scales` has
  /// `groups` elements. Each is finite and above 0, or NaN. `row` and `out` point to the beginnings
  /// of whole rows.
  void (*quantise_e4m3)(const bf16* row, const float* scales, std::size_t first, std::size_t groups,
                        std::byte* out) noexcept;

  /// Writes the f32 product of each element of `groups` groups and its group's scale. A product
  /// that is NaN gives 0x7fc00000, whatever NaN caused it.
  void (*dequantise_e4m3)(const fp8_e4m3* row, const float* scales, std::size_t groups,
                          float* out) noexcept;

  /// Converts `count` bf16 to f32 exactly, NaN payloads included.
  void (*widen)(const bf16* source, std::size_t count, float* out) noexcept;

  /// Rounds `count` f32 to bf16 as the constructor of `bf16` does.
  void (*narrow)(const float* source, std::size_t count, bf16* out) noexcept;

  /// Writes log2 of the magnitudes of the 128 columns of a group. The result is minus infinity for
  /// 0, and 128 or more for infinity and NaN. Otherwise the error is at most 6e-8 and half a unit
  /// in the last place.
  void (*log2_magnitudes)(const bf16* columns, float* out) noexcept;

  /// Writes the codes of a group on a logarithmic scale. A code is `logs` times `per_step` plus
  /// `offset`, by a fused multiply-add, rounded down, or 0 if that is negative. Results must be
  /// below 2^16.
  void (*log_codes)(const float* logs, float per_step, float offset, std::uint16_t* codes) noexcept;

  /// Writes the values of a group on a logarithmic scale. The lower 9 bits of a code are a number
  /// c. If c is 0, the value is 0. Otherwise it is the bf16 nearest to 2 to the power (c - 1) *
  /// step + lowest. That exponent must be -200 to 0. The next bit is the sign; the others are
  /// ignored.
  void (*log_values)(const std::uint16_t* codes, float step, float lowest, bf16* out) noexcept;

  /// Copies `lines` cache lines by streaming stores, which neither read the lines of `out` first
  /// nor leave them in a cache. `out` is aligned to a cache line. On x86-64, other threads may see
  /// these stores after later stores; `stream.hpp` has the fence. The scalar set uses plain stores.
  void (*stream_lines)(const std::byte* source, std::size_t lines, std::byte* out) noexcept;
};

/// Returns all sets that this CPU and operating system can run, slowest first. The first is the
/// scalar reference. Meant for tests and benchmarks.
/// Cost: the first call examines the CPU.
[[nodiscard]] std::span<const kernel_set* const> available() noexcept;

/// Returns the fastest set that this CPU and operating system can run. Every call returns the same
/// object.
[[nodiscard]] const kernel_set& best() noexcept;

}  // namespace peerbus::kernel

#ifndef PEERBUS_COMPILED
#include <peerbus/kernel/kernel_set.ipp>  // IWYU pragma: keep
#endif
