// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/fp8.hpp>

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

/// Every set that this CPU and operating system can run, slowest first; the first is the scalar
/// reference. For tests and benchmarks.
[[nodiscard]] std::span<const kernel_set* const> available() noexcept;

/// The fastest set that this CPU runs; the same object at each call.
[[nodiscard]] const kernel_set& best() noexcept;

}  // namespace peerbus::kernel

#ifndef PEERBUS_COMPILED
#include <peerbus/kernel/impl/kernel_set.hpp>  // IWYU pragma: keep
#endif
