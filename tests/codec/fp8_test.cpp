// SPDX-License-Identifier: MIT
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/concept.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/kernel_set.hpp>

#include "kernel/guarded.hpp"
#include "support/e4m3_oracle.hpp"

namespace fp8_test {

namespace {

using peerbus::bf16;
using peerbus::codec::fp8_e4m3_per_128_f32;
using peerbus::codec::fp8_e4m3_per_128_ue8m0;

static_assert(peerbus::hidden_multiple_of<fp8_e4m3_per_128_f32>() == 128);
static_assert(fp8_e4m3_per_128_f32::name != fp8_e4m3_per_128_ue8m0::name);
static_assert(fp8_e4m3_per_128_f32::row_bytes(7168) == 7168);
static_assert(fp8_e4m3_per_128_f32::scale_bytes(7168) == 56 * 4);
static_assert(fp8_e4m3_per_128_ue8m0::scale_bytes(7168) == 56);
static_assert(fp8_e4m3_per_128_ue8m0::scale_bytes(128) == 4);
static_assert(fp8_e4m3_per_128_ue8m0::scale_bytes(640) == 8);

template <class Codec>
constexpr bool powers_of_two = std::is_same_v<Codec, fp8_e4m3_per_128_ue8m0>;

struct encoded {
  std::vector<std::byte> row;
  std::vector<std::byte> scales;

  friend bool operator==(const encoded&, const encoded&) = default;

  [[nodiscard]] unsigned code(std::size_t i) const { return static_cast<unsigned>(row[i]); }
  /// Returns the scale of a group for a codec with `f32_scales`.
  [[nodiscard]] std::uint32_t scale_bits(std::size_t group) const {
    std::uint32_t bits = 0;
    std::memcpy(&bits, scales.data() + 4 * group, sizeof(bits));
    return bits;
  }
};

template <class Codec>
encoded encode(const Codec& codec, const std::vector<bf16>& token,
               std::byte before = std::byte{0xa5}) {
  encoded result{std::vector<std::byte>(Codec::row_bytes(token.size()), before),
                 std::vector<std::byte>(Codec::scale_bytes(token.size()), before)};
  codec.encode(token, result.row, result.scales);
  return result;
}

template <class Codec>
std::vector<float> decode(const Codec& codec, const encoded& code) {
  std::vector<float> out(code.row.size(), -1.0F);
  codec.decode(code.row, code.scales, out);
  return out;
}

std::vector<bf16> constant(float value, std::size_t hidden = 128) {
  return std::vector<bf16>(hidden, bf16{value});
}

/// Encodes group by group as the format prescribes, independently of the code under test.
template <class Codec>
encoded expected(const std::vector<bf16>& token) {
  encoded result{{}, std::vector<std::byte>(Codec::scale_bytes(token.size()))};
  for (std::size_t begin = 0; begin < token.size(); begin += 128) {
    float largest = 0;
    bool is_finite = true;
    for (std::size_t i = begin; i < begin + 128; ++i) {
      is_finite = is_finite && std::isfinite(static_cast<float>(token[i]));
      largest = std::max(largest, std::fabs(static_cast<float>(token[i])));
    }
    oracle::e4m3_scale scale{std::numeric_limits<float>::quiet_NaN(),
                             std::numeric_limits<float>::quiet_NaN()};
    if (is_finite) scale = oracle::e4m3_scale_of(largest, powers_of_two<Codec>);
    for (std::size_t i = begin; i < begin + 128; ++i) {
      const auto value = static_cast<float>(token[i]);
      unsigned code = oracle::e4m3_code(std::fabs(value) * scale.to_codes) & 0x7fU;
      if (std::signbit(value)) code |= 0x80U;
      result.row.push_back(static_cast<std::byte>(code));
    }
    const std::size_t group = begin / 128;
    if (powers_of_two<Codec>)
      result.scales[group] =
          static_cast<std::byte>(is_finite ? 127 + std::ilogb(scale.to_values) : 255);
    else
      std::memcpy(result.scales.data() + 4 * group, &scale.to_values, 4);
  }
  return result;
}

}  // namespace

TEST_CASE("fp8: golden scales") {
  struct golden {
    float largest;
    std::uint32_t scale;  // as f32 bits; 1 ulp from amax / 448 for 3 and for 127
    unsigned exponent;    // as UE8M0
  };
  for (const golden& row : {golden{0.0F, 0x346facad, 105}, golden{0.5F, 0x3a924925, 118},
                            golden{1.0F, 0x3b124925, 119}, golden{3.0F, 0x3bdb6db8, 120},
                            golden{127.0F, 0x3e912493, 126}, golden{128.0F, 0x3e924925, 126},
                            golden{448.0F, 0x3f800000, 127}, golden{1000.0F, 0x400edb6e, 129}}) {
    CAPTURE(row.largest);
    std::vector<bf16> token = constant(0.0F);
    token[77] = bf16{-row.largest};
    CHECK(encode(fp8_e4m3_per_128_f32{}, token).scale_bits(0) == row.scale);
    CHECK(encode(fp8_e4m3_per_128_ue8m0{}, token).scales ==
          std::vector{static_cast<std::byte>(row.exponent), std::byte{0}, std::byte{0},
                      std::byte{0}});
  }
  // Magnitudes that bf16 cannot hold.
  constexpr auto tenth = peerbus::codec::f32_scales::of(0.1F);
  CHECK(std::bit_cast<std::uint32_t>(tenth.to_codes) == 0x458c0000);
  CHECK(std::bit_cast<std::uint32_t>(tenth.to_values) == 0x396a0ea2);
  CHECK(peerbus::codec::ue8m0_scales::of(0.1F).to_values == 0x1p-12F);
  CHECK(std::bit_cast<std::uint32_t>(peerbus::codec::f32_scales::of(1e-4F).to_codes) == 0x4a88b800);
  CHECK(std::bit_cast<std::uint32_t>(peerbus::codec::f32_scales::of(3.0F).to_codes) == 0x43155555);
  CHECK(std::bit_cast<std::uint32_t>(peerbus::codec::f32_scales::of(127.0F).to_codes) ==
        0x4061c387);
  CHECK(std::bit_cast<std::uint32_t>(peerbus::codec::f32_scales::of(1000.0F).to_codes) ==
        0x3ee56042);
}

TEST_CASE("fp8: golden rows of constants") {
  for (int value = -128; value < 128; ++value) {
    CAPTURE(value);
    const auto token = constant(static_cast<float>(value));
    const encoded result = encode(fp8_e4m3_per_128_f32{}, token);
    const unsigned code = value == 0 ? 0x00 : value > 0 ? 0x7e : 0xfe;
    CHECK(result.row == std::vector<std::byte>(128, static_cast<std::byte>(code)));
    // Rounding the decoded values to bf16 restores the token exactly.
    for (const float decoded : decode(fp8_e4m3_per_128_f32{}, result))
      CHECK(bf16{decoded} == token[0]);
  }
  const encoded hundred = encode(fp8_e4m3_per_128_ue8m0{}, constant(100.0F));
  CHECK(hundred.code(0) == 0x7c);
  CHECK(decode(fp8_e4m3_per_128_ue8m0{}, hundred) == std::vector<float>(128, 96.0F));
  const encoded below = encode(fp8_e4m3_per_128_ue8m0{}, constant(127.0F));
  CHECK(below.code(127) == 0x78);
  CHECK(decode(fp8_e4m3_per_128_ue8m0{}, below) == std::vector<float>(128, 128.0F));
}

TEST_CASE_TEMPLATE("fp8: every magnitude as the largest of its group, every value beside it", Codec,
                   fp8_e4m3_per_128_f32, fp8_e4m3_per_128_ue8m0) {
  std::mt19937 random{17};
  std::size_t wrong_codes = 0;
  std::size_t wrong_decoded = 0;
  std::size_t wrong_infinite = 0;
  double excess = 0;
  for (std::uint32_t largest = 0; largest < 0x7f80; ++largest) {
    std::vector<bf16> token;
    for (std::size_t i = 0; i < 128; ++i) {
      // Half of the values are near the largest, so that not all codes are 0.
      const std::uint32_t below = std::min<std::uint32_t>(largest, i % 2 == 0 ? 0x900 : 0x8000);
      const std::uint32_t bits = largest - static_cast<std::uint32_t>(random()) % (below + 1);
      token.push_back(bf16::from_bits(static_cast<std::uint16_t>(bits | (random() & 0x8000U))));
    }
    token[largest % 128] = bf16::from_bits(static_cast<std::uint16_t>(largest));
    const encoded plain = expected<Codec>(token);
    for (const auto* set : peerbus::kernel::available()) {
      const encoded result = encode(Codec{*set}, token, std::byte{0x5a});
      wrong_codes += result != plain;
    }
    const auto scale = static_cast<double>(
        oracle::e4m3_scale_of(static_cast<float>(token[largest % 128]), powers_of_two<Codec>)
            .to_values);
    const std::vector<float> decoded = decode(Codec{}, plain);
    for (std::size_t i = 0; i < token.size(); ++i) {
      const double exact = static_cast<float>(token[i]);
      const double rounding = std::fabs(exact) * 0x1p-21;
      const double bound = std::max(std::fabs(exact) / 16, scale / 1024) + rounding;
      if (std::isinf(decoded[i]))
        wrong_infinite += !powers_of_two<Codec> || std::fabs(exact) < 0x1.fp127;
      else
        excess = std::max(excess, std::fabs(exact - static_cast<double>(decoded[i])) / bound);
      const double code = oracle::e4m3_values()[plain.code(i) & 0x7fU];
      const double value = plain.code(i) < 0x80 ? code : -code;
      wrong_decoded += decoded[i] != static_cast<float>(value * scale);
    }
  }
  CHECK(wrong_codes == 0);
  CHECK(wrong_decoded == 0);
  CHECK(wrong_infinite == 0);
  CHECK(excess <= 1.0);
  CHECK(excess > 0.9);  // The bound is no larger than it must be.
}

TEST_CASE_TEMPLATE("fp8: any bits and every length give the bytes of the definition", Codec,
                   fp8_e4m3_per_128_f32, fp8_e4m3_per_128_ue8m0) {
  std::mt19937 random{19};
  for (std::size_t hidden = 0; hidden <= 7168; hidden += hidden < 2560 ? 128 : 512) {
    std::vector<bf16> token;
    for (std::size_t i = 0; i < hidden; ++i) {
      // Every fourth group has values of any kind.
      auto bits = static_cast<std::uint16_t>(random());
      if (i / 128 % 4 != 3) bits = static_cast<std::uint16_t>((bits & 0x87ffU) | 0x3800U);
      token.push_back(bf16::from_bits(bits));
    }
    const encoded plain = expected<Codec>(token);
    const std::vector<float> values = decode(Codec{*peerbus::kernel::available()[0]}, plain);
    for (const auto* set : peerbus::kernel::available()) {
      CAPTURE(set->name);
      CAPTURE(hidden);
      const Codec codec{*set};
      CHECK(encode(codec, token) == plain);
      const std::vector<float> decoded = decode(codec, plain);
      CHECK((hidden == 0 || std::memcmp(decoded.data(), values.data(), 4 * hidden) == 0));
    }
  }
}

TEST_CASE_TEMPLATE("fp8: a NaN or an infinity makes its own group NaN and no other", Codec,
                   fp8_e4m3_per_128_f32, fp8_e4m3_per_128_ue8m0) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const auto* set : peerbus::kernel::available()) {
    const Codec codec{*set};
    for (const bf16 poison : {bf16{infinity}, bf16{-infinity}, bf16::from_bits(0x7fc0),
                              bf16::from_bits(0x7f81), bf16::from_bits(0xffff)})
      for (const std::size_t place : {0U, 127U, 128U, 255U, 383U}) {
        CAPTURE(set->name);
        CAPTURE(place);
        std::vector<bf16> token = constant(2.0F, 384);
        token[1] = token[130] = token[260] = bf16{-2.0F};
        token[place] = poison;
        const encoded result = encode(codec, token);
        const std::vector<float> decoded = decode(codec, result);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < token.size(); ++i)
          if (i / 128 == place / 128) {
            const unsigned sign = token[i].bits >> 8 & 0x80U;
            wrong += !std::isnan(decoded[i]) || result.code(i) != (0x7fU | sign);
          } else {
            wrong += decoded[i] != static_cast<float>(token[i]);
          }
        CHECK(wrong == 0);
        if (powers_of_two<Codec>)
          CHECK(result.scales[place / 128] == std::byte{0xff});
        else
          CHECK(result.scale_bits(place / 128) == 0x7fc00000U);
      }
  }
}

TEST_CASE("fp8: UE8M0 scales of groups follow each other in bytes, and zeros fill the last word") {
  std::vector<bf16> token;
  for (std::size_t group = 0; group < 22; ++group)
    for (std::size_t i = 0; i < 128; ++i)
      token.emplace_back(448.0F * std::ldexp(1.0F, static_cast<int>(group)));
  const encoded result = encode(fp8_e4m3_per_128_ue8m0{}, token);
  REQUIRE(result.scales.size() == 24);
  for (std::size_t group = 0; group < 22; ++group)
    CHECK(static_cast<std::size_t>(result.scales[group]) == 127 + group);
  CHECK(result.scales[22] == std::byte{0});
  CHECK(result.scales[23] == std::byte{0});
}

TEST_CASE_TEMPLATE("fp8: every kernel set encodes the same, and nothing beside", Codec,
                   fp8_e4m3_per_128_f32, fp8_e4m3_per_128_ue8m0) {
  using peerbus::test::edge;
  using peerbus::test::guarded;
  std::mt19937 random{23};
  for (const auto* set : peerbus::kernel::available())
    for (const edge side : {edge::front, edge::back})
      for (const std::size_t hidden : {128U, 384U, 2048U, 2176U, 7168U}) {
        CAPTURE(set->name);
        CAPTURE(hidden);
        const Codec codec{*set};
        const guarded<bf16> token{hidden, side};
        for (bf16& value : token.all())
          value = bf16::from_bits(static_cast<std::uint16_t>(random() & 0xbfffU));
        const encoded expected = encode(Codec{*peerbus::kernel::available()[0]},
                                        std::vector<bf16>(token.all().begin(), token.all().end()));
        const guarded<std::byte> row{hidden, side};
        const guarded<std::byte> scales{Codec::scale_bytes(hidden), side};
        codec.encode(token.all(), row.all(), scales.all());
        const auto equal = [](const guarded<std::byte>& given,
                              const std::vector<std::byte>& whole) {
          return std::equal(whole.begin(), whole.end(), given.data());
        };
        CHECK(equal(row, expected.row));
        CHECK(equal(scales, expected.scales));
        CHECK(row.untouched());
        CHECK(scales.untouched());
        const guarded<float> values{hidden, side};
        codec.decode(row.all(), scales.all(), values.all());
        CHECK(values.untouched());
      }
}

}  // namespace fp8_test
