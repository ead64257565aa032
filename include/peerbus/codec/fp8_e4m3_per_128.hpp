// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include <peerbus/codec/concept.hpp>
#include <peerbus/codec/fp8_scales.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/fp8.hpp>
#include <peerbus/kernel/group.hpp>
#include <peerbus/kernel/kernel_set.hpp>

namespace peerbus::codec {

/// A codec with one byte of E4M3 per channel and one scale for each 128 channels: the format of
/// DeepEP's fp8 dispatch. `f32_scales` gives its default format, `rounded_f32_scales` the format of
/// `round_scale`, and `ue8m0_scales` the format of `round_scale` with `use_ue8m0`. Scales lie in
/// the order of their groups.
///
/// With a the largest magnitude of a group, but at least 1e-4, all arithmetic in f32:
///
/// | group                    | scale s                     | code                          |
/// | ------------------------ | --------------------------- | ----------------------------- |
/// | finite, `f32_scales`     | a * (1 / 448)               | e4m3(x * (448 / a))           |
/// | finite, the other two    | 2^ceil(log2(a * (1 / 448))) | e4m3(x / s)                   |
/// | has a NaN or an infinity | NaN                         | 0x7f, or 0xff if x has a sign |
///
/// A value is its code times s. The scale is that of DeepEP's kernels; DeepEP's Python helper
/// divides by 448, which may give another last bit. |x - decoded x| <= max(|x| / 16, s / 1024),
/// except for the rounding of f32: 2^-21 of x. With rounded scales, magnitudes of at least 2^128 -
/// 2^123 decode to infinity.
///
/// `hidden` is a multiple of 128.
///
/// Cost: `encode` reads the token twice, the second time from the first-level cache, and writes
/// the row once.
template <class Scales>
class fp8_e4m3_per_128 {
 public:
  ///@{
  /// Implements the concept `token_codec`, which states the contract of each member.
  using element = fp8_e4m3;

  static constexpr std::string_view name = Scales::codec_name;
  static constexpr std::size_t hidden_multiple = kernel::group_columns;

  [[nodiscard]] static constexpr std::size_t row_bytes(std::size_t hidden) noexcept {
    return hidden;
  }
  [[nodiscard]] static constexpr std::size_t scale_bytes(std::size_t hidden) noexcept {
    return Scales::bytes(hidden / hidden_multiple);
  }

  fp8_e4m3_per_128() noexcept = default;

  /// Makes a codec that uses `kernels` instead of the fastest ones. `kernels` must outlive the
  /// codec and its copies.
  explicit fp8_e4m3_per_128(const kernel::kernel_set& kernels) noexcept : kernels_{&kernels} {}

  void encode(std::span<const ::peerbus::bf16> token, std::span<std::byte> row,
              std::span<std::byte> scales) const noexcept {
    const std::size_t groups = groups_of(token.size(), scales);
    for (std::size_t first = 0; first < groups; first += batch) {
      const std::size_t count = std::min(batch, groups - first);
      std::array<std::uint16_t, batch> magnitudes;
      std::array<float, batch> to_codes;
      std::array<typename Scales::stored, batch> packed{};
      kernels_->group_magnitude_bits(token.data() + first * hidden_multiple, count,
                                     magnitudes.data());
      fetch(token, (first + batch) * hidden_multiple);
      for (std::size_t i = 0; i < count; ++i) {
        const detail::group_scale scale = scale_of(magnitudes[i]);
        to_codes[i] = scale.to_codes;
        packed[i] = Scales::pack(scale.to_values);
      }
      kernels_->quantise_e4m3(token.data(), to_codes.data(), first, count, row.data());
      std::memcpy(scales.data() + Scales::bytes(first), packed.data(), Scales::bytes(count));
    }
  }

  void decode(std::span<const std::byte> row, std::span<const std::byte> scales,
              std::span<float> out) const noexcept {
    const std::size_t groups = groups_of(out.size(), scales);
    for (std::size_t first = 0; first < groups; first += batch) {
      const std::size_t count = std::min(batch, groups - first);
      std::array<typename Scales::stored, batch> packed;
      std::memcpy(packed.data(), scales.data() + Scales::bytes(first), Scales::bytes(count));
      std::array<float, batch> to_values;
      for (std::size_t i = 0; i < count; ++i) to_values[i] = Scales::unpack(packed[i]);
      const std::size_t column = first * hidden_multiple;
      kernels_->dequantise_e4m3(reinterpret_cast<const element*>(row.data() + column),
                                to_values.data(), count, out.data() + column);
    }
  }
  ///@}

 private:
  /// The number of groups for which all codes are computed before the next groups are begun. They
  /// cover 4 KiB of the token, which are still in the first-level cache when they are read again.
  /// It is a multiple of 4, so that the scales of a batch begin where the scales of the previous
  /// batch end.
  static constexpr std::size_t batch = 16;

  static constexpr std::uint16_t infinity_bits = 0x7f80;

  /// Returns the number of groups in `columns` channels. It is also limited by `scales`, although
  /// they have room for all groups. Otherwise a compiler that knows the size of the scales, but not
  /// the number of channels, would warn that the loop over groups may pass their end.
  [[nodiscard]] static constexpr std::size_t groups_of(std::size_t columns,
                                                       std::span<const std::byte> scales) noexcept {
    return std::min(columns / hidden_multiple, scales.size() / sizeof(typename Scales::stored));
  }

  /// Begins to load the batch at `column`, if there is one. Without this call, nothing would be
  /// loaded while the codes of the previous batch are computed, because the hardware prefetcher
  /// stops then.
  static void fetch(std::span<const ::peerbus::bf16> token, std::size_t column) noexcept {
    constexpr std::size_t line = cache_line_bytes / sizeof(::peerbus::bf16);
    const std::size_t end = std::min(token.size(), column + batch * hidden_multiple);
    for (; column < end; column += line) __builtin_prefetch(token.data() + column);
  }

  /// Returns the factors of a group whose largest magnitude has the representation
  /// `magnitude_bits`.
  [[nodiscard]] static detail::group_scale scale_of(std::uint16_t magnitude_bits) noexcept {
    if (magnitude_bits >= infinity_bits) return detail::no_scale;
    const auto magnitude = static_cast<float>(::peerbus::bf16::from_bits(magnitude_bits));
    return Scales::of(std::max(magnitude, detail::smallest_magnitude));
  }

  const kernel::kernel_set* kernels_ = &kernel::best();
};

/// The default format of DeepEP's fp8 dispatch.
using fp8_e4m3_per_128_f32 = fp8_e4m3_per_128<f32_scales>;
/// The format of DeepEP's fp8 dispatch with `round_scale`.
using fp8_e4m3_per_128_rounded_f32 = fp8_e4m3_per_128<rounded_f32_scales>;
/// The format of DeepEP's fp8 dispatch with `round_scale` and `use_ue8m0`.
using fp8_e4m3_per_128_ue8m0 = fp8_e4m3_per_128<ue8m0_scales>;

static_assert(token_codec<fp8_e4m3_per_128_f32> && !verbatim_codec<fp8_e4m3_per_128_f32>);
static_assert(token_codec<fp8_e4m3_per_128_rounded_f32>);
static_assert(token_codec<fp8_e4m3_per_128_ue8m0> && !verbatim_codec<fp8_e4m3_per_128_ue8m0>);

}  // namespace peerbus::codec
