// SPDX-License-Identifier: MIT
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include <peerbus/codec/archetype.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/concept.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/codec/int8_per_token.hpp>

namespace concept_test {

namespace {

using peerbus::bf16;
using peerbus::token_codec;
using peerbus::verbatim_codec;

/// A codec that is right in every part. Each near miss below replaces one part.
struct sound {
  using element = bf16;
  static constexpr std::string_view name = "sound";
  static constexpr bool verbatim = true;
  static constexpr std::size_t row_bytes(std::size_t hidden) noexcept { return 2 * hidden; }
  static constexpr std::size_t scale_bytes(std::size_t) noexcept { return 0; }
  void encode(std::span<const bf16>, std::span<std::byte>, std::span<std::byte>) const noexcept {}
  void decode(std::span<const std::byte>, std::span<const std::byte>,
              std::span<float>) const noexcept {}
};
static_assert(token_codec<sound> && verbatim_codec<sound>);

struct encode_not_const : sound {
  void encode(std::span<const bf16>, std::span<std::byte>, std::span<std::byte>) noexcept {}
};
struct encode_may_throw : sound {
  void encode(std::span<const bf16>, std::span<std::byte>, std::span<std::byte>) const {}
};
struct encode_writes_the_token : sound {
  void encode(std::span<bf16>, std::span<std::byte>, std::span<std::byte>) const noexcept {}
};
struct encode_returns : sound {
  int encode(std::span<const bf16>, std::span<std::byte>, std::span<std::byte>) const noexcept {
    return 0;
  }
};
struct decode_not_const : sound {
  void decode(std::span<const std::byte>, std::span<const std::byte>, std::span<float>) noexcept {}
};
struct decode_may_throw : sound {
  void decode(std::span<const std::byte>, std::span<const std::byte>, std::span<float>) const {}
};
struct decode_writes_the_row : sound {
  void decode(std::span<std::byte>, std::span<const std::byte>, std::span<float>) const noexcept {}
};
struct sizes_may_throw : sound {
  static constexpr std::size_t row_bytes(std::size_t hidden) { return 2 * hidden; }
};
struct sizes_not_constant : sound {
  static std::size_t row_bytes(std::size_t hidden) noexcept { return 2 * hidden; }
};
struct sizes_not_static : sound {
  constexpr std::size_t scale_bytes(std::size_t) const noexcept { return 0; }
};
struct sizes_of_int : sound {
  static constexpr int row_bytes(std::size_t) noexcept { return 32; }
};
struct scales_not_of_words : sound {
  static constexpr std::size_t scale_bytes(std::size_t) noexcept { return 6; }
};
struct half_an_element : sound {
  static constexpr std::size_t row_bytes(std::size_t hidden) noexcept { return 2 * hidden + 1; }
};
struct element_not_trivial : sound {
  using element = std::string;
};
struct element_too_aligned : sound {
  struct alignas(32) element {};
};
struct name_of_characters : sound {
  static constexpr const char* name = "characters";
};
struct name_not_constant : sound {
  static const std::string_view name;
};
const std::string_view name_not_constant::name = "not constant";
struct name_empty : sound {
  static constexpr std::string_view name{};
};
struct copy_may_throw : sound {
  std::string member;
};

static_assert(!token_codec<int>);
static_assert(!token_codec<encode_not_const>);
static_assert(!token_codec<encode_may_throw>);
static_assert(!token_codec<encode_writes_the_token>);
static_assert(!token_codec<encode_returns>);
static_assert(!token_codec<decode_not_const>);
static_assert(!token_codec<decode_may_throw>);
static_assert(!token_codec<decode_writes_the_row>);
static_assert(!token_codec<sizes_may_throw>);
static_assert(!token_codec<sizes_not_constant>);
static_assert(!token_codec<sizes_not_static>);
static_assert(!token_codec<sizes_of_int>);
static_assert(!token_codec<scales_not_of_words>);
static_assert(!token_codec<half_an_element>);
static_assert(!token_codec<element_not_trivial>);
static_assert(!token_codec<element_too_aligned>);
static_assert(!token_codec<name_of_characters>);
static_assert(!token_codec<name_not_constant>);
static_assert(!token_codec<name_empty>);
static_assert(!token_codec<copy_may_throw>);

struct not_verbatim : sound {
  static constexpr bool verbatim = false;
};
struct verbatim_with_scales : sound {
  static constexpr std::size_t scale_bytes(std::size_t) noexcept { return 4; }
};
struct verbatim_of_bytes : sound {
  using element = std::byte;
};
static_assert(token_codec<not_verbatim> && !verbatim_codec<not_verbatim>);
static_assert(token_codec<verbatim_with_scales> && !verbatim_codec<verbatim_with_scales>);
static_assert(token_codec<verbatim_of_bytes> && !verbatim_codec<verbatim_of_bytes>);

/// A codec whose sizes are right only for whole groups, so that the concept must check whole
/// groups.
struct of_groups : sound {
  using element = std::byte;
  static constexpr std::size_t hidden_multiple = 96;
  static constexpr std::size_t row_bytes(std::size_t hidden) noexcept { return hidden / 96; }
  static constexpr std::size_t scale_bytes(std::size_t hidden) noexcept {
    return hidden % 96 == 0 ? 4 : 1;
  }
};
struct verbatim_of_groups : sound {
  static constexpr std::size_t hidden_multiple = 3;
};
struct multiple_of_zero : sound {
  static constexpr std::size_t hidden_multiple = 0;
};
struct multiple_of_int : sound {
  static constexpr int hidden_multiple = 128;
};
struct multiple_not_constant : sound {
  static const std::size_t hidden_multiple;
};
std::size_t found_at_start() { return 128; }
const std::size_t multiple_not_constant::hidden_multiple = found_at_start();

static_assert(token_codec<of_groups> && peerbus::hidden_multiple_of<of_groups>() == 96);
static_assert(verbatim_codec<verbatim_of_groups>);
static_assert(peerbus::hidden_multiple_of<sound>() == 1);
static_assert(!token_codec<multiple_of_zero>);
static_assert(!token_codec<multiple_of_int>);
static_assert(!token_codec<multiple_not_constant>);

static_assert(verbatim_codec<peerbus::codec::bf16>);
static_assert(token_codec<peerbus::codec::int8_per_token>);
static_assert(!verbatim_codec<peerbus::codec::int8_per_token>);
static_assert(!verbatim_codec<peerbus::codec::fp8_e4m3_per_128_f32>);
static_assert(peerbus::codec::bf16::row_bytes(7168) == 14336);
static_assert(peerbus::codec::bf16::scale_bytes(7168) == 0);
static_assert(peerbus::codec::int8_per_token::row_bytes(7168) == 7168);
static_assert(peerbus::codec::int8_per_token::scale_bytes(7168) == 4);

}  // namespace

TEST_CASE("the codec archetype carries a token") {
  const auto codec = peerbus::codec::archetype::make();
  const std::array<bf16, 3> token{bf16{1.0F}, bf16{-2.5F}, bf16{0.0F}};
  alignas(16) std::array<std::byte, 6> row{};
  alignas(4) std::array<std::byte, 4> scales{};
  codec.encode(token, row, scales);
  std::array<float, 3> out{};
  codec.decode(row, scales, out);
  CHECK(out == std::array{1.0F, -2.5F, 0.0F});
}

}  // namespace concept_test
