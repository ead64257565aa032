// SPDX-License-Identifier: MIT
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/fp8.hpp>
#include <peerbus/kernel/group.hpp>
#include <peerbus/kernel/kernel_set.hpp>

#include "guarded.hpp"
#include "support/e4m3_oracle.hpp"

namespace e4m3_test {

namespace {

using peerbus::bf16;
using peerbus::fp8_e4m3;
using peerbus::kernel::kernel_set;
using peerbus::test::edge;
using peerbus::test::guarded;

constexpr std::size_t group = peerbus::kernel::group_columns;
const float not_a_number = std::bit_cast<float>(0x7fc00000U);

std::vector<bf16> every_value() {
  std::vector<bf16> values;
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits)
    values.push_back(bf16::from_bits(static_cast<std::uint16_t>(bits)));
  return values;
}

std::vector<fp8_e4m3> quantised(const kernel_set& set, std::span<const bf16> row,
                                std::span<const float> scales) {
  std::vector<fp8_e4m3> codes(row.size());
  std::byte* const place = reinterpret_cast<std::byte*>(codes.data());
  set.quantise_e4m3(row.data(), scales.data(), 0, row.size() / group, place);
  return codes;
}

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

}  // namespace

TEST_CASE("quantise_e4m3 follows its definition for every value") {
  const std::vector<bf16> values = every_value();
  for (const float scale :
       {1.0F, 0.125F, 448.0F, 448.0F / 3.0F, 448.0F / 1e-4F, 0x1p22F, 0x1.fffffep-1F, 1.1F, 1e-38F,
        1e-42F, 3e38F, FLT_MAX, not_a_number, -not_a_number, std::bit_cast<float>(0x7f812345U)}) {
    CAPTURE(scale);
    std::vector<std::uint8_t> expected;
    for (const bf16 value : values) {
      const auto magnitude = bf16::from_bits(static_cast<std::uint16_t>(value.bits & 0x7fffU));
      // The definition computes the product in f32, and so does this test.
      const float product = static_cast<float>(magnitude) * scale;
      const unsigned code = oracle::e4m3_code(product) & 0x7fU;
      expected.push_back(static_cast<std::uint8_t>(code | (value.bits >> 8 & 0x80U)));
    }
    const std::vector<float> scales(values.size() / group, scale);
    for (const kernel_set* set : peerbus::kernel::available()) {
      CAPTURE(set->name);
      const std::vector<fp8_e4m3> codes = quantised(*set, values, scales);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < codes.size(); ++i) wrong += codes[i].bits != expected[i];
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("dequantise_e4m3 multiplies every code, and knows one NaN") {
  std::vector<fp8_e4m3> codes;
  for (unsigned code = 0; code < 256; ++code)
    codes.push_back(fp8_e4m3::from_bits(static_cast<std::uint8_t>(code)));
  for (const float scale : {1.0F, 0x1p-22F, 0.3F, 1e-42F, 3e38F, -2.0F, 0.0F,
                            std::numeric_limits<float>::infinity(), not_a_number, -not_a_number}) {
    CAPTURE(scale);
    const std::array scales{scale, scale};
    for (const kernel_set* set : peerbus::kernel::available()) {
      CAPTURE(set->name);
      std::vector<float> out(codes.size());
      set->dequantise_e4m3(codes.data(), scales.data(), 2, out.data());
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < codes.size(); ++i) {
        float expected = not_a_number;
        if (i % 0x80 != 0x7f) {
          const auto value = static_cast<float>(oracle::e4m3_values()[i % 0x80]);
          const float product = (i < 0x80 ? value : -value) * scale;
          if (!std::isnan(product)) expected = product;
        }
        wrong += !same(out[i], expected);
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("group_magnitude_bits finds the largest at every place of its own group alone") {
  for (const kernel_set* set : peerbus::kernel::available()) {
    CAPTURE(set->name);
    std::vector<bf16> row(3 * group, bf16::from_bits(0x8123));
    std::size_t wrong = 0;
    for (std::size_t place = 0; place < row.size(); ++place)
      for (const std::uint16_t bits :
           std::initializer_list<std::uint16_t>{0xffff, 0x0124, 0xff80}) {
        row[place] = bf16::from_bits(bits);
        std::array<std::uint16_t, 3> found{};
        std::array<std::uint16_t, 3> expected{0x0123, 0x0123, 0x0123};
        expected[place / group] = static_cast<std::uint16_t>(bits & 0x7fffU);
        set->group_magnitude_bits(row.data(), 3, found.data());
        wrong += found != expected;
        row[place] = bf16::from_bits(0x8123);
      }
    CHECK(wrong == 0);
  }
}

TEST_CASE("each group has its own scale, wherever in the row the call begins") {
  const std::vector<bf16> row(7 * group, bf16{1.0F});
  for (const kernel_set* set : peerbus::kernel::available())
    for (std::size_t first = 0; first < 7; ++first)
      for (std::size_t count = 0; first + count <= 7; ++count) {
        std::vector<float> scales;
        for (std::size_t i = 0; i < count; ++i) scales.push_back(static_cast<float>(1U << i));
        std::vector<std::uint8_t> codes(row.size(), 0xa5);
        std::byte* const place = reinterpret_cast<std::byte*>(codes.data());
        set->quantise_e4m3(row.data(), scales.data(), first, count, place);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < row.size(); ++i) {
          const std::size_t index = i / group;
          const bool is_inside = index >= first && index < first + count;
          wrong += codes[i] != (is_inside ? oracle::e4m3_code(scales[index - first]) : 0xa5);
        }
        CAPTURE(set->name);
        CAPTURE(first);
        CAPTURE(count);
        CHECK(wrong == 0);
      }
}

TEST_CASE("no kernel of fp8 touches memory outside its rows, and all sets agree on any bits") {
  std::mt19937 random{3};
  const kernel_set& reference = *peerbus::kernel::available().front();
  for (const edge side : {edge::front, edge::back})
    for (std::size_t groups = 0; groups <= 20; ++groups) {
      const std::size_t columns = groups * group;
      const guarded<bf16> row{columns, side};
      for (bf16& value : row.all()) value = bf16::from_bits(static_cast<std::uint16_t>(random()));
      const guarded<float> scales{groups, side};
      for (float& scale : scales.all())
        scale = random() % 8 == 0
                    ? not_a_number
                    : std::bit_cast<float>(static_cast<std::uint32_t>(1 + random() % 0x7f7f'ffffU));

      std::vector<std::uint16_t> magnitudes(groups);
      reference.group_magnitude_bits(row.data(), groups, magnitudes.data());
      const std::vector<fp8_e4m3> codes = quantised(reference, row.all(), scales.all());
      const guarded<fp8_e4m3> any_codes{columns, side};
      for (fp8_e4m3& code : any_codes.all()) code.bits = static_cast<std::uint8_t>(random());
      std::vector<float> values(columns);
      reference.dequantise_e4m3(any_codes.data(), scales.data(), groups, values.data());

      for (const kernel_set* set : peerbus::kernel::available()) {
        const guarded<std::uint16_t> out_magnitudes{groups, side};
        const guarded<fp8_e4m3> out_codes{columns, side};
        const guarded<float> out_values{columns, side};
        set->group_magnitude_bits(row.data(), groups, out_magnitudes.data());
        set->quantise_e4m3(row.data(), scales.data(), 0, groups,
                           reinterpret_cast<std::byte*>(out_codes.data()));
        set->dequantise_e4m3(any_codes.data(), scales.data(), groups, out_values.data());
        CAPTURE(set->name);
        CAPTURE(groups);
        const auto equal = [](const auto& given, const auto& expected) {
          return std::memcmp(given.data(), expected.data(), std::span{expected}.size_bytes()) == 0;
        };
        CHECK((groups == 0 || equal(out_magnitudes, magnitudes)));
        CHECK((groups == 0 || equal(out_codes, codes)));
        CHECK((groups == 0 || equal(out_values, values)));
        CHECK(out_magnitudes.untouched());
        CHECK(out_codes.untouched());
        CHECK(out_values.untouched());
      }
    }
}

}  // namespace e4m3_test
