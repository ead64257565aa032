// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstdint>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

/// The constants of the conversion from f32, which the scalar and the vector forms share.
namespace detail::e4m3 {

inline constexpr std::uint32_t exponent_mask = 0x7f80'0000;
inline constexpr float smallest_normal = 0x1p-6F;
inline constexpr float power_to_shift = 0x1p20F;

/// The difference between a sum and its code: 8 x (20 + 127 - 6).
inline constexpr std::uint16_t code_offset = 1128;
inline constexpr std::uint16_t largest_code = 0x7e;
inline constexpr std::uint16_t nan_code = 0x7f;

}  // namespace detail::e4m3

/// The E4M3 format of the OCP 8-bit floating point specification (revision 1.0), also known as
/// float8_e4m3fn: 1 sign, 4 exponent (bias 7) and 3 mantissa bits. The largest magnitude is 448 and
/// the smallest is 2^-9. There is no infinity. NaN is 0x7f or 0xff. A storage type only: arithmetic
/// is done in `float`.
struct fp8_e4m3 {
  std::uint8_t bits = 0;  ///< the representation; 0 is the number 0

  constexpr fp8_e4m3() = default;

  /// Converts `value`, rounding to nearest, ties to even. Magnitudes above 448, infinities
  /// included, give 448 of the same sign. A NaN gives a NaN of the same sign.
  constexpr explicit fp8_e4m3(float value) noexcept {
    namespace e4m3 = detail::e4m3;
    const auto wide = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude_bits = wide & 0x7fff'ffffU;
    const auto given = std::bit_cast<float>(magnitude_bits);
    // Limits magnitudes that are beyond the largest code anyway, so that nothing below overflows.
    const float magnitude = given > 0x1p9F ? 0x1p9F : given;
    // Adding 2^20 times its own power of two leaves a number with the three mantissa bits of the
    // format, rounded as the format rounds. Below 2^-6 the format has a constant step, so the
    // addend is constant there too.
    const float at_least = magnitude < e4m3::smallest_normal ? e4m3::smallest_normal : magnitude;
    const std::uint32_t shift =
        std::bit_cast<std::uint32_t>(at_least * e4m3::power_to_shift) & e4m3::exponent_mask;
    const auto sum = std::bit_cast<std::uint32_t>(magnitude + std::bit_cast<float>(shift));
    // The code is the sum of the exponent, in steps of 8, and the mantissa, whose implicit 1 is an
    // explicit 8 here. An infinity also gives more than the largest code.
    const std::uint32_t code = (sum & 0xffffU) + (sum >> 20) - e4m3::code_offset;
    const std::uint32_t limited = code < e4m3::largest_code ? code : e4m3::largest_code;
    bits = static_cast<std::uint8_t>(
        (magnitude_bits > e4m3::exponent_mask ? e4m3::nan_code : limited) | (wide >> 24 & 0x80U));
  }

  /// Converts to `float` exactly. NaN becomes the quiet NaN 0x7fc00000 or 0xffc00000.
  constexpr explicit operator float() const noexcept {
    const std::uint32_t magnitude = bits & 0x7fU;
    const std::uint32_t sign = (bits & 0x80U) << 24;
    if (magnitude == 0x7f) return std::bit_cast<float>(0x7fc0'0000U | sign);
    const std::uint32_t denormal =
        std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-9F);
    const std::uint32_t normal = (magnitude << 20) + (120U << 23);
    return std::bit_cast<float>((magnitude < 8 ? denormal : normal) | sign);
  }

  /// Returns the number whose representation is `bits`.
  [[nodiscard]] static constexpr fp8_e4m3 from_bits(std::uint8_t bits) noexcept {
    fp8_e4m3 value;
    value.bits = bits;
    return value;
  }

  /// Compares representations, not numbers: NaN equals itself, and -0 differs from 0.
  friend constexpr bool operator==(fp8_e4m3, fp8_e4m3) = default;
};

static_assert(sizeof(fp8_e4m3) == 1 && alignof(fp8_e4m3) == 1);

}  // namespace peerbus
