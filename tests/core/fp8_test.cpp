// SPDX-License-Identifier: MIT
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/fp8.hpp>

#include "support/e4m3_oracle.hpp"

namespace fp8_test {

using peerbus::fp8_e4m3;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

static_assert(std::is_trivially_copyable_v<fp8_e4m3>);
static_assert(fp8_e4m3{1.0F}.bits == 0x38 && fp8_e4m3{-448.0F}.bits == 0xfe);
static_assert(static_cast<float>(fp8_e4m3::from_bits(0x01)) == 0x1p-9F);

}  // namespace

TEST_CASE("every fp8 code has its value, and its value gives it back") {
  for (unsigned code = 0; code < 256; ++code) {
    CAPTURE(code);
    const auto value = static_cast<float>(fp8_e4m3::from_bits(static_cast<std::uint8_t>(code)));
    CHECK(fp8_e4m3{value}.bits == code);
    CHECK(std::signbit(value) == (code >= 0x80));
    if (code % 0x80 == 0x7f)
      CHECK(std::bit_cast<std::uint32_t>(value) == (code == 0x7f ? 0x7fc00000U : 0xffc00000U));
    else
      CHECK(std::fabs(static_cast<double>(value)) == oracle::e4m3_values()[code % 0x80]);
  }
}

TEST_CASE("golden fp8 codes") {
  CHECK(fp8_e4m3{0.0F}.bits == 0x00);
  CHECK(fp8_e4m3{-0.0F}.bits == 0x80);
  CHECK(fp8_e4m3{0x1p-10F}.bits == 0x00);  // A tie, to the even 0.
  CHECK(fp8_e4m3{0x1.000002p-10F}.bits == 0x01);
  CHECK(fp8_e4m3{0x1.8p-9F}.bits == 0x02);  // A tie, to the even 2.
  CHECK(fp8_e4m3{0x1p-6F}.bits == 0x08);    // The smallest normal number.
  CHECK(fp8_e4m3{0x1.ep-7F}.bits == 0x08);  // A denormal that rounds to it.
  CHECK(fp8_e4m3{100.0F}.bits == 0x6c);
  CHECK(fp8_e4m3{448.0F}.bits == 0x7e);
  CHECK(fp8_e4m3{464.0F}.bits == 0x7e);  // As near to 480, which the format lacks.
  CHECK(fp8_e4m3{1e30F}.bits == 0x7e);
  CHECK(fp8_e4m3{3.4e38F}.bits == 0x7e);
  CHECK(fp8_e4m3{-infinity}.bits == 0xfe);
  CHECK(fp8_e4m3{std::bit_cast<float>(0x7f800001U)}.bits == 0x7f);
  CHECK(fp8_e4m3{std::bit_cast<float>(0xffffffffU)}.bits == 0xff);
}

TEST_CASE("floats of any bits, and those around every tie, round to the nearest fp8") {
  std::vector<float> values;
  std::mt19937 random{5};
  for (int i = 0; i < 1'000'000; ++i)
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  const auto& codes = oracle::e4m3_values();
  for (std::size_t code = 1; code < codes.size(); ++code) {
    const auto tie = static_cast<float>((codes[code - 1] + codes[code]) / 2);
    for (const float value : {tie, std::nextafter(tie, 0.0F), std::nextafter(tie, infinity)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  std::size_t wrong = 0;
  for (const float value : values) wrong += fp8_e4m3{value}.bits != oracle::e4m3_code(value);
  CHECK(wrong == 0);
}

TEST_CASE("fp8 compares representations") {
  CHECK(fp8_e4m3::from_bits(0x7f) == fp8_e4m3::from_bits(0x7f));
  CHECK(fp8_e4m3{0.0F} != fp8_e4m3{-0.0F});
  CHECK(fp8_e4m3{} == fp8_e4m3{0.0F});
}

}  // namespace fp8_test
