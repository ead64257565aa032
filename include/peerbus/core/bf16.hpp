// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstdint>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

/// The upper half of an IEEE 754 binary32: 1 sign, 8 exponent and 7 mantissa bits. A storage type
/// only: arithmetic is done in `float`.
struct bf16 {
  std::uint16_t bits = 0;  ///< the representation; 0 is the number 0

  constexpr bf16() = default;

  /// Converts `value`, rounding to nearest, ties to even. Infinities and values that overflow give
  /// infinity. A NaN gives a quiet NaN of the same sign, because the kept part of its payload may
  /// be zero.
  constexpr explicit bf16(float value) noexcept {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    if ((wide & 0x7fff'ffffU) > 0x7f80'0000U) {
      bits = static_cast<std::uint16_t>((wide >> 16) | 0x0040U);
      return;
    }
    // Adds half of the dropped unit if the kept part is odd, and half minus one if it is even. The
    // addition carries into the kept part exactly when round-to-nearest-even rounds up.
    bits = static_cast<std::uint16_t>((wide + 0x7fffU + ((wide >> 16) & 1U)) >> 16);
  }

  /// Converts to `float` exactly.
  constexpr explicit operator float() const noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }

  /// Returns the number whose representation is `bits`.
  [[nodiscard]] static constexpr bf16 from_bits(std::uint16_t bits) noexcept {
    bf16 value;
    value.bits = bits;
    return value;
  }

  /// Compares representations, not numbers: NaN equals itself, and -0 differs from 0.
  friend constexpr bool operator==(bf16, bf16) = default;
};

static_assert(sizeof(bf16) == 2 && alignof(bf16) == 2);

}  // namespace peerbus
