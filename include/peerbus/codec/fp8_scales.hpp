// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include <peerbus/core/align.hpp>

/// @file
/// The ways in which `fp8_e4m3_per_128` scales a group and sends its scale.
namespace peerbus::codec {

namespace detail {

/// The factors of a group: its values times `to_codes` give codes, and its codes times `to_values`
/// give values.
struct group_scale {
  float to_codes;
  float to_values;
};

/// The factors of a group that has a NaN or an infinity.
inline constexpr group_scale no_scale{std::numeric_limits<float>::quiet_NaN(),
                                      std::numeric_limits<float>::quiet_NaN()};

/// The smallest magnitude from which a scale is computed. A group whose magnitudes are all smaller
/// gets the scale of this magnitude.
inline constexpr float smallest_magnitude = 1e-4F;

/// The factor that turns the largest magnitude of a group into its scale. Dividing by 448 instead
/// would give another last bit for some magnitudes.
inline constexpr float per_largest_code = 1.0F / 448.0F;

}  // namespace detail

/// Scales of one f32 per group: the largest magnitude times 1 / 448.
struct f32_scales {
  /// The `name` of the codec with these scales.
  static constexpr std::string_view codec_name = "fp8_e4m3_per_128_f32";

  /// The type of a scale in the scales of a row.
  using stored = float;

  /// Returns the size in bytes of the scales of `groups` groups.
  [[nodiscard]] static constexpr std::size_t bytes(std::size_t groups) noexcept {
    return groups * sizeof(stored);
  }

  /// Returns the factors of a group whose largest magnitude is `magnitude`, which is finite and at
  /// least `smallest_magnitude`.
  [[nodiscard]] static constexpr detail::group_scale of(float magnitude) noexcept {
    return {448.0F / magnitude, magnitude * detail::per_largest_code};
  }

  /// Returns the scale in its stored form. `to_values` is the factor that turns codes into values.
  [[nodiscard]] static constexpr stored pack(float to_values) noexcept { return to_values; }
  /// Returns the factor that turns codes into values, from the stored scale.
  [[nodiscard]] static constexpr float unpack(stored scale) noexcept { return scale; }
};

namespace detail {

/// Returns the exponent, biased by 127, of the smallest power of two that is not below the scale of
/// `f32_scales`.
[[nodiscard]] constexpr std::uint32_t rounded_exponent(float magnitude) noexcept {
  const auto exact = std::bit_cast<std::uint32_t>(magnitude * per_largest_code);
  return (exact + 0x007f'ffffU) >> 23;
}
/// Returns the factors for a scale of 2^(exponent - 127).
[[nodiscard]] constexpr group_scale power_of_two(std::uint32_t exponent) noexcept {
  return {std::bit_cast<float>((254U - exponent) << 23), std::bit_cast<float>(exponent << 23)};
}

}  // namespace detail

/// Scales of one f32 per group, rounded up to a power of two.
struct rounded_f32_scales : f32_scales {
  /// The `name` of the codec with these scales.
  static constexpr std::string_view codec_name = "fp8_e4m3_per_128_rounded_f32";

  /// Returns the factors for a group whose largest magnitude is `magnitude`. The scale is rounded
  /// up to a power of two.
  [[nodiscard]] static constexpr detail::group_scale of(float magnitude) noexcept {
    return detail::power_of_two(detail::rounded_exponent(magnitude));
  }
};

/// Scales of one byte per group in the UE8M0 format: the biased exponent of the scale of
/// `rounded_f32_scales`. The byte 255 is NaN. Four bytes form a word, with the first group in its
/// lowest byte. Zero bytes fill the last word.
struct ue8m0_scales {
  /// The `name` of the codec with these scales.
  static constexpr std::string_view codec_name = "fp8_e4m3_per_128_ue8m0";

  /// The type of a scale in the scales of a row: the exponent, biased by 127.
  using stored = std::uint8_t;

  /// Returns the size in bytes of the scales of `groups` groups, in whole words.
  [[nodiscard]] static constexpr std::size_t bytes(std::size_t groups) noexcept {
    return align_up(groups, 4);
  }

  /// Returns the same factors as `rounded_f32_scales::of`.
  [[nodiscard]] static constexpr detail::group_scale of(float magnitude) noexcept {
    return detail::power_of_two(detail::rounded_exponent(magnitude));
  }

  /// Returns the biased exponent of `to_values`, a power of two or NaN.
  [[nodiscard]] static constexpr stored pack(float to_values) noexcept {
    return static_cast<stored>(std::bit_cast<std::uint32_t>(to_values) >> 23);
  }
  /// Returns the factor that turns codes into values, from the stored exponent.
  [[nodiscard]] static constexpr float unpack(stored scale) noexcept {
    if (scale == 0xff) return std::numeric_limits<float>::quiet_NaN();
    return std::bit_cast<float>(static_cast<std::uint32_t>(scale) << 23);
  }
};

}  // namespace peerbus::codec
