// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/group.hpp>

/// The kernels of logarithmic codes. One text serves all instruction sets: each set compiles these
/// loops for itself. The loops have no calls and no branches, so that compilers can vectorise them.
/// They multiply and add only by fused instructions, so that every set gives the same bits.
namespace peerbus::kernel::logarithm {

// Both polynomials are least-squares fits, weighted until the errors were equal.
/// The coefficients of log2(1 + z) / z for z from sqrt(1/2) - 1 to sqrt(2) - 1. Error 5e-8.
inline constexpr float log2_terms[] = {0x1.715472p+0F,  -0x1.7155bap-1F, 0x1.ec7b64p-2F,
                                       -0x1.70bab2p-2F, 0x1.2596aap-2F,  -0x1.00122ap-2F,
                                       0x1.e52678p-3F,  -0x1.2a7b48p-3F};
/// The coefficients of 2^f for f from -1/2 to 1/2. Relative error 8e-8.
inline constexpr float exp2_terms[] = {1.0F,         0.69314694F,  0.2402212F,
                                       0.055507135F, 0.009675541F, 0.0013276467F};

/// Returns the value at `x` of the polynomial with the coefficients `terms`, from index `First` on.
/// It is recursive, because gcc does not vectorise a loop that contains a loop.
template <std::size_t First = 0, std::size_t Count>
[[gnu::always_inline]] inline float polynomial(const float (&terms)[Count], float x) noexcept {
  if constexpr (First + 1 == Count)
    return terms[First];
  else
    return __builtin_fmaf(polynomial<First + 1>(terms, x), x, terms[First]);
}

/// Returns `yes` if `condition`, otherwise `no`. It uses masks, because compilers make branches of
/// `?:` where they can save arithmetic, and then do not vectorise.
[[gnu::always_inline]] inline std::uint32_t choose(bool condition, std::uint32_t yes,
                                                   std::uint32_t no) noexcept {
  const std::uint32_t mask = 0U - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

/// Returns 2^`exponent`, for an exponent from -126 to 127.
[[gnu::always_inline]] inline float power_of_two(std::int32_t exponent) noexcept {
  return std::bit_cast<float>((exponent + 127) << 23);
}

/// Returns log2 of the bf16 whose bits without the sign are `magnitude`. The result is minus
/// infinity for 0, and at least 128 for infinity and NaN.
[[gnu::always_inline]] inline float log2_of(std::uint32_t magnitude) noexcept {
  const std::uint32_t plain = magnitude << 16;
  const auto enlarged = std::bit_cast<std::uint32_t>(std::bit_cast<float>(plain) * 0x1p64F);
  const bool denormal = magnitude < 0x80;
  const auto bits = static_cast<std::int32_t>(choose(denormal, enlarged, plain));
  // Counted from sqrt(1/2), so that what is left lies around 1.
  constexpr std::int32_t sqrt_half = 0x3f35'04f3;
  const std::int32_t exponent = (bits - sqrt_half) >> 23;
  const float rest = std::bit_cast<float>(bits - exponent * (1 << 23)) - 1.0F;
  const auto whole =
      static_cast<float>(exponent - static_cast<std::int32_t>(choose(denormal, 64, 0)));
  const float log = __builtin_fmaf(polynomial(log2_terms, rest), rest, whole);
  constexpr auto none = std::bit_cast<std::uint32_t>(-std::numeric_limits<float>::infinity());
  return std::bit_cast<float>(choose(magnitude == 0, none, std::bit_cast<std::uint32_t>(log)));
}

/// Returns the bits of the bf16 nearest to 2^`exponent`, for an exponent from -200 to 0.
[[gnu::always_inline]] inline std::uint32_t exp2_bits(float exponent) noexcept {
  // Adding 1.5 * 2^23 rounds to an integer, which is then the low part of the representation.
  constexpr float shift = 0x1.8p23F;
  const float shifted = exponent + shift;
  const std::int32_t whole =
      std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(shift);
  const float rest = exponent - (shifted - shift);
  // In two steps, because the result may be denormal.
  const std::int32_t half = whole >> 1;
  const float value =
      polynomial(exp2_terms, rest) * power_of_two(half) * power_of_two(whole - half);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
}

/// Implements `kernel_set::log2_magnitudes` for any set.
[[gnu::always_inline]] inline void log2_magnitudes(const bf16* columns, float* out) noexcept {
  std::uint32_t from[group_columns];
  for (std::size_t i = 0; i < group_columns; ++i) from[i] = columns[i].bits & 0x7fffU;
  for (std::size_t i = 0; i < group_columns; ++i) out[i] = log2_of(from[i]);
}

/// Implements `kernel_set::log_codes` for any set.
[[gnu::always_inline]] inline void log_codes(const float* logs, float per_step, float offset,
                                             std::uint16_t* codes) noexcept {
  std::int32_t integers[group_columns];
  for (std::size_t i = 0; i < group_columns; ++i) {
    const float place = __builtin_fmaf(logs[i], per_step, offset);
    const std::uint32_t bits = choose(place > 0, std::bit_cast<std::uint32_t>(place), 0);
    integers[i] = static_cast<std::int32_t>(std::bit_cast<float>(bits));
  }
  for (std::size_t i = 0; i < group_columns; ++i)
    codes[i] = static_cast<std::uint16_t>(integers[i]);
}

/// Implements `kernel_set::log_values` for any set.
[[gnu::always_inline]] inline void log_values(const std::uint16_t* codes, float step, float lowest,
                                              bf16* out) noexcept {
  std::uint32_t both[group_columns];  // First the codes, then the values.
  for (std::size_t i = 0; i < group_columns; ++i) both[i] = codes[i];
  for (std::size_t i = 0; i < group_columns; ++i) {
    const std::uint32_t code = both[i] & 0x1ffU;
    const auto steps = static_cast<float>(static_cast<std::int32_t>(code) - 1);
    const std::uint32_t value = exp2_bits(__builtin_fmaf(steps, step, lowest));
    both[i] = choose(code == 0, 0, value) | (both[i] & 0x200U) << 6;
  }
  for (std::size_t i = 0; i < group_columns; ++i) out[i].bits = static_cast<std::uint16_t>(both[i]);
}

}  // namespace peerbus::kernel::logarithm
