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
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/concept.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/kernel_set.hpp>

namespace codec_test {

namespace {

using peerbus::bf16;
using peerbus::codec::int8_per_token;

/// A row and its scales as `encode` wrote them.
struct encoded {
  std::vector<std::byte> row;
  std::vector<std::byte> scales;

  friend bool operator==(const encoded&, const encoded&) = default;

  [[nodiscard]] float scale() const {
    float value = 0;
    std::memcpy(&value, scales.data(), sizeof(value));
    return value;
  }
  [[nodiscard]] std::vector<int> codes() const {
    std::vector<int> values;
    values.reserve(row.size());
    for (const std::byte code : row) values.push_back(static_cast<std::int8_t>(code));
    return values;
  }
};

/// Encodes into memory that is full of `before`. The result must not depend on it, because `encode`
/// promises to write every byte.
template <peerbus::token_codec Codec>
encoded encode(const Codec& codec, const std::vector<bf16>& token,
               std::byte before = std::byte{0xa5}) {
  encoded result{std::vector<std::byte>(Codec::row_bytes(token.size()), before),
                 std::vector<std::byte>(Codec::scale_bytes(token.size()), before)};
  codec.encode(token, result.row, result.scales);
  return result;
}

template <peerbus::token_codec Codec>
std::vector<float> decode(const Codec& codec, const encoded& code, std::size_t hidden) {
  std::vector<float> out(hidden, -1.0F);
  codec.decode(code.row, code.scales, out);
  return out;
}

std::vector<bf16> token_of(std::initializer_list<float> values) {
  std::vector<bf16> token;
  for (const float value : values) token.emplace_back(value);
  return token;
}

/// Returns the largest excess of |x - decoded| over half a scale, in the units that the codec
/// allows.
double excess(const std::vector<bf16>& token, const encoded& code,
              const std::vector<float>& decoded) {
  double largest = 0;
  double worst = 0;
  for (std::size_t i = 0; i < token.size(); ++i) {
    const double exact = static_cast<float>(token[i]);
    largest = std::max(largest, std::abs(exact));
    worst = std::max(worst, std::abs(exact - static_cast<double>(decoded[i])));
  }
  return (worst - static_cast<double>(code.scale()) / 2) / (largest * 0x1p-21 + 0x1p-142);
}

}  // namespace

TEST_CASE("codec::bf16 is the identity on every value") {
  std::vector<bf16> token;
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits)
    token.push_back(bf16::from_bits(static_cast<std::uint16_t>(bits)));
  for (const auto* set : peerbus::kernel::available()) {
    const peerbus::codec::bf16 codec{*set};
    const encoded result = encode(codec, token);
    REQUIRE(result.row.size() == token.size() * 2);
    CHECK(std::memcmp(result.row.data(), token.data(), result.row.size()) == 0);
    const std::vector<float> decoded = decode(codec, result, token.size());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < token.size(); ++i)
      wrong += std::bit_cast<std::uint32_t>(decoded[i]) != static_cast<std::uint32_t>(i) << 16;
    CHECK(wrong == 0);
  }
  const peerbus::codec::bf16 codec;
  CHECK(encode(codec, {}) == encoded{});
}

TEST_CASE("int8_per_token: golden rows") {
  const int8_per_token codec;

  const encoded whole = encode(codec, token_of({127, 63.5F, 62.5F, -127, 0.5F, 1.5F, -1.5F, 0}));
  CHECK(whole.scale() == 1.0F);
  CHECK(whole.codes() == std::vector<int>{127, 64, 62, -127, 0, 2, -2, 0});

  const encoded doubled = encode(codec, token_of({-254, 2, 3, -5, 127}));
  CHECK(doubled.scale() == 2.0F);
  CHECK(doubled.codes() == std::vector<int>{-127, 1, 2, -2, 64});
  CHECK(decode(codec, doubled, 5) == std::vector<float>{-254, 2, 4, -4, 128});

  const encoded small = encode(codec, token_of({1, 0.5F, -0.25F, 0.01F}));
  CHECK(std::bit_cast<std::uint32_t>(small.scale()) == 0x3c010204U);  // 1 / 127
  CHECK(small.codes() == std::vector<int>{127, 64, -32, 1});

  const encoded tiny = encode(codec, {bf16::from_bits(0x0002), bf16::from_bits(0x8001)});
  CHECK(tiny.scale() == 0x1p-132F / 127.0F);
  CHECK(tiny.codes() == std::vector<int>{127, -64});  // 63.5 goes to the even 64
}

TEST_CASE("int8_per_token: zero tokens have scale 0") {
  for (const auto* set : peerbus::kernel::available()) {
    const int8_per_token codec{*set};
    const encoded zero = encode(codec, std::vector<bf16>(50, bf16{-0.0F}));
    CHECK(std::bit_cast<std::uint32_t>(zero.scale()) == 0);
    CHECK(zero.codes() == std::vector<int>(50, 0));
    CHECK(decode(codec, zero, 50) == std::vector<float>(50, 0.0F));
    CHECK(encode(codec, {}).scale() == 0.0F);
  }
}

TEST_CASE("int8_per_token: a NaN or an infinity anywhere makes the whole token NaN") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::vector<bf16> poisons{bf16{infinity}, bf16{-infinity}, bf16::from_bits(0x7fc0),
                                  bf16::from_bits(0x7f81), bf16::from_bits(0xffff)};
  for (const auto* set : peerbus::kernel::available()) {
    CAPTURE(set->name);
    const int8_per_token codec{*set};
    for (const bf16 poison : poisons)
      for (const std::size_t place : {0U, 31U, 64U, 70U}) {
        std::vector<bf16> token(71, bf16{2.0F});
        token[place] = poison;
        const encoded result = encode(codec, token);
        CHECK(std::bit_cast<std::uint32_t>(result.scale()) == 0x7fc00000U);
        CHECK(result.codes() == std::vector<int>(71, 0));
        for (const float value : decode(codec, result, token.size())) CHECK(std::isnan(value));
      }
  }
}

TEST_CASE("int8_per_token: half a scale is the largest error, for every largest magnitude") {
  std::mt19937 random{7};
  std::uniform_real_distribution<float> part{-1.0F, 1.0F};
  const auto sets = peerbus::kernel::available();
  double worst = 0;
  std::size_t unlike = 0;
  std::size_t not_full = 0;
  for (std::uint32_t bits = 1; bits < 0x7f80; ++bits) {
    const bf16 largest = bf16::from_bits(static_cast<std::uint16_t>(bits));
    std::vector<bf16> token;
    token.reserve(79);
    for (std::size_t i = 0; i < 79; ++i)
      token.emplace_back(static_cast<float>(largest) * part(random));
    token[bits % token.size()] = largest;
    const int8_per_token codec{*sets.front()};
    const encoded result = encode(codec, token);
    worst = std::max(worst, excess(token, result, decode(codec, result, token.size())));
    not_full += result.codes()[bits % token.size()] != 127;
    for (const auto* set : sets)
      unlike += encode(int8_per_token{*set}, token, std::byte{0x5a}) != result;
  }
  CHECK(worst <= 1.0);
  CHECK(not_full == 0);
  CHECK(unlike == 0);
}

TEST_CASE("int8_per_token: any bits give the same bytes from every set") {
  std::mt19937 random{11};
  const auto sets = peerbus::kernel::available();
  for (std::size_t hidden = 0; hidden < 200; ++hidden) {
    std::vector<bf16> token;
    token.reserve(hidden);
    for (std::size_t i = 0; i < hidden; ++i)
      token.push_back(bf16::from_bits(static_cast<std::uint16_t>(random() % 0x7f80)));
    const encoded expected = encode(int8_per_token{*sets.front()}, token);
    for (const auto* set : sets) {
      CAPTURE(set->name);
      CAPTURE(hidden);
      const int8_per_token codec{*set};
      CHECK(encode(codec, token) == expected);
      CHECK(decode(codec, expected, hidden) ==
            decode(int8_per_token{*sets.front()}, expected, hidden));
    }
  }
}

}  // namespace codec_test
