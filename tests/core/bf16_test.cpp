// SPDX-License-Identifier: MIT
#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include <doctest/doctest.h>

#include <peerbus/core/bf16.hpp>

namespace bf16_test {

using peerbus::bf16;

namespace {

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// Returns the value of a magnitude. The representation of infinity counts as 2^128, as if the
/// exponents went on, because rounding to infinity begins there.
double magnitude(std::uint32_t bits) {
  return bits == 0x7f80U ? std::ldexp(1.0, 128) : static_cast<double>(float_of(bits << 16));
}

/// Rounds by the distances to the two neighbours in double, where both differences are exact.
std::uint16_t rounded_by_distance(std::uint32_t wide) {
  const std::uint32_t sign = wide & 0x8000'0000U;
  const std::uint32_t below = (wide & 0x7fff'ffffU) >> 16;
  const double value = static_cast<double>(float_of(wide & 0x7fff'ffffU));
  const double down = value - magnitude(below);
  const double up = magnitude(below + 1) - value;
  const bool rounds_up = up < down || (up == down && below % 2 == 1);
  return static_cast<std::uint16_t>((sign >> 16) | (below + (rounds_up ? 1 : 0)));
}

}  // namespace

TEST_CASE("bf16: every representation survives the way through float") {
  for (std::uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const bf16 value = bf16::from_bits(static_cast<std::uint16_t>(bits));
    const bf16 again{static_cast<float>(value)};
    const bool nan = (bits & 0x7fffU) > 0x7f80U;
    REQUIRE(again.bits == (nan ? (bits | 0x40U) : bits));
    REQUIRE(std::isnan(static_cast<float>(value)) == nan);
  }
}

TEST_CASE("bf16: rounds to nearest even, around every representation") {
  for (std::uint32_t upper = 0; upper <= 0xffffU; ++upper) {
    if ((upper & 0x7fffU) >= 0x7f80U) continue;
    for (std::uint32_t lower : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      const std::uint32_t wide = upper << 16 | lower;
      REQUIRE(bf16{float_of(wide)}.bits == rounded_by_distance(wide));
    }
  }
}

TEST_CASE("bf16: known values") {
  CHECK(bf16{1.0F}.bits == 0x3f80);
  CHECK(bf16{-2.0F}.bits == 0xc000);
  CHECK(bf16{0.0F}.bits == 0x0000);
  CHECK(bf16{-0.0F}.bits == 0x8000);
  CHECK(bf16{3.14159265F}.bits == 0x4049);
  CHECK(bf16{1.00390625F}.bits == 0x3f80);  // 1 + 2^-8: a tie, down to the even one
  CHECK(bf16{1.01171875F}.bits == 0x3f82);  // 1 + 3 * 2^-8: a tie, up to the even one
  CHECK(bf16{std::numeric_limits<float>::infinity()}.bits == 0x7f80);
  CHECK(bf16{-std::numeric_limits<float>::infinity()}.bits == 0xff80);
  CHECK(bf16{std::numeric_limits<float>::max()}.bits == 0x7f80);
  CHECK(bf16{float_of(0x7f7f'7fffU)}.bits == 0x7f7f);  // the last below the tie to infinity
  CHECK(bf16{float_of(0x0000'8000U)}.bits == 0x0000);  // half of the least subnormal: to even
  CHECK(bf16{float_of(0x0000'8001U)}.bits == 0x0001);
}

TEST_CASE("bf16: a NaN stays a NaN of its sign") {
  for (std::uint32_t bits : {0x7f80'0001U, 0x7fbf'ffffU, 0x7fc0'0000U, 0x7fff'ffffU, 0x7f80'8000U,
                             0xff80'0001U, 0xffff'ffffU}) {
    const bf16 value{float_of(bits)};
    CHECK(std::isnan(static_cast<float>(value)));
    CHECK((value.bits >> 15) == (bits >> 31));
    CHECK((value.bits & 0x40) != 0);
  }
}

TEST_CASE("bf16: equality is of representations") {
  CHECK(bf16::from_bits(0x7fc0) == bf16::from_bits(0x7fc0));
  CHECK(bf16{0.0F} != bf16{-0.0F});
  static_assert(bf16{} == bf16{0.0F});
}

}  // namespace bf16_test
