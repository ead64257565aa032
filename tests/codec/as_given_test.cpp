// SPDX-License-Identifier: MIT
// ctest: tsan
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/archetype.hpp>
#include <peerbus/codec/as_given.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/concept.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/codec/nothing.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/fp8.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/loopback.hpp>

#include "support/e4m3_oracle.hpp"
#include "support/indirect.hpp"
#include "support/ranks.hpp"

namespace as_given_test {

namespace {

using peerbus::bf16;
using peerbus::fp8_e4m3;
using peerbus::token_codec;
using peerbus::token_of;
using peerbus::verbatim_codec;
using peerbus::codec::fp8_e4m3_as_given;
using peerbus::codec::fp8_e4m3_per_128_f32;
using peerbus::codec::fp8_e4m3_per_128_rounded_f32;
using peerbus::codec::fp8_e4m3_per_128_ue8m0;
using peerbus::codec::nothing;

// The types of the elements of tokens.
static_assert(std::is_same_v<token_of<peerbus::codec::bf16>, bf16>);
static_assert(std::is_same_v<token_of<peerbus::codec::int8_per_token>, bf16>);
static_assert(std::is_same_v<token_of<fp8_e4m3_per_128_rounded_f32>, bf16>);
static_assert(std::is_same_v<token_of<peerbus::codec::archetype>, bf16>);
static_assert(std::is_same_v<token_of<nothing>, bf16>);
static_assert(std::is_same_v<token_of<fp8_e4m3_as_given>, fp8_e4m3>);
static_assert(verbatim_codec<fp8_e4m3_as_given>);
static_assert(token_codec<nothing> && !verbatim_codec<nothing>);

/// A codec that is right in every part. Each near miss below replaces one part.
struct of_words {
  using token = std::uint32_t;
  using element = std::uint32_t;
  static constexpr std::string_view name = "of_words";
  static constexpr bool verbatim = true;
  static constexpr std::size_t row_bytes(std::size_t hidden) noexcept { return 4 * hidden; }
  static constexpr std::size_t scale_bytes(std::size_t) noexcept { return 0; }
  void encode(std::span<const std::uint32_t>, std::span<std::byte>,
              std::span<std::byte>) const noexcept {}
  void decode(std::span<const std::byte>, std::span<const std::byte>,
              std::span<float>) const noexcept {}
};
static_assert(token_codec<of_words> && verbatim_codec<of_words>);
static_assert(std::is_same_v<token_of<of_words>, std::uint32_t>);

struct encodes_bf16 : of_words {
  void encode(std::span<const bf16>, std::span<std::byte>, std::span<std::byte>) const noexcept {}
};
struct of_strings : of_words {
  using token = std::string;
  void encode(std::span<const std::string>, std::span<std::byte>,
              std::span<std::byte>) const noexcept {}
};
struct rows_of_others : of_words {
  using element = float;
};
struct rows_of_bf16_size : of_words {
  static constexpr std::size_t row_bytes(std::size_t hidden) noexcept { return 2 * hidden; }
};
static_assert(!token_codec<encodes_bf16>);
static_assert(!token_codec<of_strings>);
static_assert(token_codec<rows_of_others> && !verbatim_codec<rows_of_others>);
static_assert(!verbatim_codec<rows_of_bf16_size>);

static_assert(fp8_e4m3_as_given::row_bytes(7168) == 7168);
static_assert(fp8_e4m3_as_given::scale_bytes(7168) == 0);
static_assert(nothing::row_bytes(7168) == 0 && nothing::scale_bytes(7168) == 0);
static_assert(fp8_e4m3_per_128_rounded_f32::row_bytes(7168) == 7168);
static_assert(fp8_e4m3_per_128_rounded_f32::scale_bytes(7168) == 224);
// Different formats must have different names.
static_assert(fp8_e4m3_per_128_rounded_f32::name != fp8_e4m3_per_128_f32::name &&
              fp8_e4m3_per_128_rounded_f32::name != fp8_e4m3_per_128_ue8m0::name &&
              fp8_e4m3_as_given::name != nothing::name);

struct encoded {
  std::vector<std::byte> row;
  std::vector<std::byte> scales;
  friend bool operator==(const encoded&, const encoded&) = default;

  [[nodiscard]] std::uint32_t scale_bits(std::size_t group) const {
    std::uint32_t bits = 0;
    std::memcpy(&bits, scales.data() + 4 * group, sizeof bits);
    return bits;
  }
};

template <class Codec>
encoded encode(const Codec& codec, const std::vector<bf16>& token) {
  encoded made{std::vector<std::byte>(Codec::row_bytes(token.size()), std::byte{0xa5}),
               std::vector<std::byte>(Codec::scale_bytes(token.size()), std::byte{0xa5})};
  codec.encode(token, made.row, made.scales);
  return made;
}

/// Returns a group whose largest magnitude is `largest`.
std::vector<bf16> group_of(float largest) {
  std::vector<bf16> token(128, bf16{0.0F});
  token[77] = bf16{-largest};
  return token;
}

}  // namespace

TEST_CASE("fp8_e4m3_as_given: codes travel unchanged and mean what they mean") {
  std::vector<fp8_e4m3> codes;
  codes.reserve(256);
  for (unsigned bits = 0; bits < 256; ++bits)
    codes.push_back(fp8_e4m3::from_bits(static_cast<std::uint8_t>(bits)));
  const fp8_e4m3_as_given codec;
  std::vector<std::byte> row(256, std::byte{0xa5});
  codec.encode(codes, row, {});
  std::vector<float> values(256, -1);
  codec.decode(row, {}, values);
  for (std::size_t i = 0; i < 256; ++i) {
    CAPTURE(i);
    CHECK(row[i] == static_cast<std::byte>(i));
    const bool negative = i >= 128;
    const std::size_t magnitude = i % 128;
    CHECK(std::signbit(values[i]) == negative);
    if (magnitude == 127)
      CHECK(std::isnan(values[i]));
    else
      CHECK(static_cast<double>(std::fabs(values[i])) == oracle::e4m3_values()[magnitude]);
  }
  codec.encode({}, {}, {});
  codec.decode({}, {}, {});
}

TEST_CASE("nothing: no bytes, zeros") {
  const nothing codec;
  const std::vector<bf16> token(40, bf16{3.0F});
  CHECK(encode(codec, token) == encoded{});
  std::vector<float> values(40, -1);
  codec.decode({}, {}, values);
  CHECK(values == std::vector<float>(40, 0.0F));
}

TEST_CASE("fp8_e4m3_per_128_rounded_f32: golden scales") {
  struct golden {
    float largest;
    int exponent;
    unsigned ue8m0;
  };
  for (const golden& row : {golden{0.0F, -22, 105},
                            {0.5F, -9, 118},
                            {1.0F, -8, 119},
                            {3.0F, -7, 120},
                            {127.0F, -1, 126},
                            {128.0F, -1, 126},
                            {448.0F, 0, 127},
                            {1000.0F, 2, 129}}) {
    CAPTURE(row.largest);
    const encoded made = encode(fp8_e4m3_per_128_rounded_f32{}, group_of(row.largest));
    CHECK(std::bit_cast<float>(made.scale_bits(0)) == std::ldexp(1.0F, row.exponent));
    CHECK(made.scale_bits(0) == row.ue8m0 << 23U);
  }
  // Magnitudes that bf16 cannot hold.
  constexpr auto tenth = peerbus::codec::rounded_f32_scales::of(0.1F);
  CHECK(tenth.to_values == 0x1p-12F);
  CHECK(tenth.to_codes == 0x1p12F);
}

TEST_CASE("fp8_e4m3_per_128_rounded_f32: golden rows of constants") {
  struct golden {
    float value;
    unsigned code;
    float back;
  };
  for (const golden& row : {golden{100, 0x7c, 96},
                            {127, 0x78, 128},
                            {-127, 0xf8, -128},
                            {-128, 0xf8, -128},
                            {1, 0x78, 1},
                            {448, 0x7e, 448}}) {
    CAPTURE(row.value);
    const std::vector<bf16> token(128, bf16{row.value});
    const encoded made = encode(fp8_e4m3_per_128_rounded_f32{}, token);
    CHECK(made.row == std::vector<std::byte>(128, static_cast<std::byte>(row.code)));
    std::vector<float> values(128);
    fp8_e4m3_per_128_rounded_f32{}.decode(made.row, made.scales, values);
    CHECK(values == std::vector<float>(128, row.back));
  }
}

TEST_CASE("fp8_e4m3_per_128_rounded_f32: any numbers, from every set of kernels, by the oracle") {
  std::mt19937 random{5};
  for (const std::size_t groups : {1U, 2U, 17U, 56U}) {
    std::vector<bf16> token;
    for (std::size_t i = 0; i < groups * 128; ++i) {
      // The groups range from tiny to huge, and a few values are not numbers.
      const auto exponent = static_cast<unsigned>(i / 128 * 37 % 240) + random() % 8;
      const auto bits = (random() & 0x807fU) | exponent << 7U;
      token.push_back(bf16::from_bits(static_cast<std::uint16_t>(bits)));
    }
    if (groups > 2) token[128 + 5] = bf16{std::numeric_limits<float>::infinity()};
    encoded expected;
    std::vector<float> values;
    for (std::size_t g = 0; g < groups; ++g) {
      float largest = 0;
      bool is_finite = true;
      for (std::size_t i = g * 128; i < (g + 1) * 128; ++i) {
        is_finite = is_finite && std::isfinite(static_cast<float>(token[i]));
        largest = std::max(largest, std::fabs(static_cast<float>(token[i])));
      }
      constexpr float nan = std::numeric_limits<float>::quiet_NaN();
      const auto scale =
          is_finite ? oracle::e4m3_scale_of(largest, true) : oracle::e4m3_scale{nan, nan};
      for (std::size_t i = g * 128; i < (g + 1) * 128; ++i) {
        const auto value = static_cast<float>(token[i]);
        unsigned code = oracle::e4m3_code(std::fabs(value) * scale.to_codes) & 0x7fU;
        if (std::signbit(value)) code |= 0x80U;
        expected.row.push_back(static_cast<std::byte>(code));
        const double magnitude =
            (code & 0x7fU) == 0x7f ? static_cast<double>(nan) : oracle::e4m3_values()[code & 0x7fU];
        values.push_back(static_cast<float>((code & 0x80U) != 0 ? -magnitude : magnitude) *
                         scale.to_values);
      }
      const auto bits = std::bit_cast<std::array<std::byte, 4>>(scale.to_values);
      expected.scales.insert(expected.scales.end(), bits.begin(), bits.end());
    }
    for (const auto* set : peerbus::kernel::available()) {
      CAPTURE(set->name);
      const fp8_e4m3_per_128_rounded_f32 codec{*set};
      const encoded made = encode(codec, token);
      CHECK(made.row == expected.row);
      for (std::size_t g = 0; g < groups; ++g) CHECK(made.scale_bits(g) == expected.scale_bits(g));
      std::vector<float> back(token.size());
      codec.decode(made.row, made.scales, back);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < back.size(); ++i)
        wrong += back[i] != values[i] && !(std::isnan(back[i]) && std::isnan(values[i]));
      CHECK(wrong == 0);
      // The codes do not depend on the format of the scales.
      CHECK(made.row == encode(fp8_e4m3_per_128_ue8m0{*set}, token).row);
    }
  }
}

namespace {

/// Runs two ranks that exchange tokens. Checks the outputs of the experts that come home.
template <class Transport, class Codec, class Layout, class Check>
void check_exchange(Check check) {
  const int worst_status = test::threads_over<Transport>::run(2, [check](auto& comm) {
    peerbus::moe::exchange moe{
        comm, {.experts = 2, .hidden = 32, .top_k = 2, .max_tokens = 3}, Codec{}, Layout{}};
    const std::size_t rank = comm.rank().index();
    std::vector<token_of<Codec>> tokens(32 * 3);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i].bits = static_cast<std::uint8_t>((i * 37 + rank * 101) % 256);
    const std::vector<std::int64_t> experts{0, 1, -1, 0, 1, -1};
    const std::vector<float> weights{1, 1, 1, 1, 1, 1};
    const auto got = moe.dispatch(tokens, {experts, weights});
    const std::size_t count = check(got, rank);
    test::expect_equal(count, 4U, "rows");
    std::vector<bf16> out(tokens.size());
    moe.combine(got, out);
    for (std::size_t i = 0; i < out.size(); ++i)
      test::expect_equal(static_cast<float>(out[i]),
                         i < 32   ? 3.0F
                         : i < 64 ? 1.0F
                                  : 2.0F,
                         "output ", i);
  });
  CHECK(worst_status == 0);
}

/// Checks the rows of an expert with `check_row` and fills its outputs: 1 for expert 0, 2 for
/// expert 1.
template <class Rows, class CheckRow>
std::size_t visit(const Rows& rows, std::size_t expert, CheckRow check_row) {
  for (std::size_t i = 0; i < rows.count(); ++i) {
    check_row(rows, i);
    for (bf16& value : rows.output(i)) value = bf16{static_cast<float>(expert + 1)};
  }
  return rows.count();
}

constexpr auto codes_arrived = [](const auto& rows, std::size_t i) {
  const auto row = rows.row(i);
  const std::size_t source = rows.origin(i).rank.index();
  for (std::size_t h = 0; h < row.size(); ++h)
    test::expect_equal(static_cast<std::size_t>(row[h].bits),
                       ((rows.origin(i).token * 32 + h) * 37 + source * 101) % 256, "code ", h);
};
constexpr auto no_bytes = [](const auto& rows, std::size_t i) {
  test::expect(rows.row(i).empty(), "a row of no bytes");
};

}  // namespace

TEST_CASE("an exchange of codes as given, and of nothing") {
  using peerbus::loopback;
  using peerbus::moe::compact;
  using peerbus::moe::rank_major;
  const auto by_expert = [](auto check_row) {
    return [check_row](const auto& got, std::size_t rank) {
      return visit(got.experts()[0], rank, check_row);
    };
  };
  const auto by_rank = [](auto check_row) {
    return [check_row](const auto& got, std::size_t rank) { return visit(got, rank, check_row); };
  };
  check_exchange<loopback, fp8_e4m3_as_given, compact>(by_expert(codes_arrived));
  check_exchange<loopback, fp8_e4m3_as_given, rank_major>(by_rank(codes_arrived));
  check_exchange<test::indirect<loopback>, fp8_e4m3_as_given, rank_major>(by_rank(codes_arrived));
  check_exchange<loopback, nothing, rank_major>(by_rank(no_bytes));
  check_exchange<test::indirect<loopback>, nothing, rank_major>(by_rank(no_bytes));
  check_exchange<test::indirect<loopback>, nothing, compact>(by_expert(no_bytes));
}

}  // namespace as_given_test
