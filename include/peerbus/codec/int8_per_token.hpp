// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/kernel_set.hpp>

namespace peerbus::codec {

/// A codec with one signed byte per element and one f32 scale per token: the per-token dynamic int8
/// of the Ascend dispatch operator (quantisation mode 2). There scale = rowmax / 127, and a value
/// is its code times the scale.
///
/// With m the largest magnitude of the token, all arithmetic in f32:
///
/// | token                    | scale     | code                                              |
/// | ------------------------ | --------- | ------------------------------------------------- |
/// | finite                   | m / 127   | rint(x * (127 / m)), ties to even, in [-127, 127] |
/// | all zero, or empty       | 0         | 0                                                 |
/// | has a NaN or an infinity | quiet NaN | 0, so that every value decodes to NaN             |
///
/// The code -128 is never used. |x - decoded x| <= scale / 2, except for the rounding of f32: 2^-21
/// of m, and 2^-142 if m is so small that the scale is denormal. If 127 / m would overflow (taken
/// as m < 2^-121), the token is first multiplied by 2^64. That is exact, so that such tokens are as
/// precise as others.
///
/// The operator stores 1 / (127 / m), which may differ from m / 127 in the last place.
///
/// Cost: `encode` reads the token twice (once for m) and writes the row once.
class int8_per_token {
 public:
  ///@{
  /// Implements the concept `token_codec`, which states the contract of each member.
  using element = std::int8_t;

  static constexpr std::string_view name = "int8_per_token";

  [[nodiscard]] static constexpr std::size_t row_bytes(std::size_t hidden) noexcept {
    return hidden;
  }
  [[nodiscard]] static constexpr std::size_t scale_bytes(std::size_t) noexcept {
    return sizeof(float);
  }

  int8_per_token() noexcept = default;

  /// Makes a codec that uses `kernels` instead of the fastest ones. `kernels` must outlive the
  /// codec and its copies.
  explicit int8_per_token(const kernel::kernel_set& kernels) noexcept : kernels_{&kernels} {}

  void encode(std::span<const ::peerbus::bf16> token, std::span<std::byte> row,
              std::span<std::byte> scales) const noexcept {
    const ::peerbus::bf16 largest =
        ::peerbus::bf16::from_bits(kernels_->max_magnitude_bits(token.data(), token.size()));
    const auto magnitude = static_cast<float>(largest);
    float scale = magnitude / 127.0F;
    if (largest.bits == 0 || largest.bits >= infinity_bits) {
      if (largest.bits != 0) scale = std::numeric_limits<float>::quiet_NaN();
      std::fill_n(row.data(), token.size(), std::byte{0});
    } else if (magnitude < smallest_invertible) {
      quantise_tiny(token, magnitude, row.data());
    } else {
      kernels_->quantise_int8(token.data(), token.size(), 127.0F / magnitude, row.data());
    }
    std::memcpy(scales.data(), &scale, sizeof(scale));
  }

  void decode(std::span<const std::byte> row, std::span<const std::byte> scales,
              std::span<float> out) const noexcept {
    float scale = 0;
    std::memcpy(&scale, scales.data(), sizeof(scale));
    kernels_->dequantise_int8(reinterpret_cast<const std::int8_t*>(row.data()), out.size(), scale,
                              out.data());
  }
  ///@}

 private:
  static constexpr std::uint16_t infinity_bits = 0x7f80;

  /// The smallest magnitude that is quantised directly. 127 divided by this or by a larger
  /// magnitude is finite.
  static constexpr float smallest_invertible = 0x1p-121F;

  /// Quantises a token whose `magnitude` is below `smallest_invertible`, in blocks that it first
  /// multiplies by 2^64.
  void quantise_tiny(std::span<const ::peerbus::bf16> token, float magnitude,
                     std::byte* row) const noexcept {
    constexpr float enlarge = 0x1p64F;
    const float inverse = 127.0F / (magnitude * enlarge);
    std::array<::peerbus::bf16, 64> block;
    for (std::size_t begin = 0; begin < token.size(); begin += block.size()) {
      const auto part = token.subspan(begin, std::min(block.size(), token.size() - begin));
      std::transform(part.begin(), part.end(), block.begin(), [](::peerbus::bf16 value) {
        return ::peerbus::bf16{static_cast<float>(value) * enlarge};
      });
      kernels_->quantise_int8(block.data(), part.size(), inverse, row + begin);
    }
  }

  const kernel::kernel_set* kernels_ = &kernel::best();
};

static_assert(token_codec<int8_per_token> && !verbatim_codec<int8_per_token>);

}  // namespace peerbus::codec
