// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include <peerbus/codec/archetype.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>

#include "support/arithmetic.hpp"
#include "support/e4m3_oracle.hpp"

/// What dispatch and combine must give, computed slowly and plainly from what all ranks put in.
/// Nothing here uses the library's arithmetic.
namespace oracle {

/// A counter-based generator: the same numbers everywhere.
class random {
 public:
  explicit random(std::uint64_t seed) noexcept : state_{seed} {}
  std::uint64_t next() noexcept {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t n) noexcept { return static_cast<std::size_t>(next() % n); }
  /// In (0, 1).
  double unit() noexcept { return (static_cast<double>(next() >> 12) + 0.5) / 0x1p52; }

 private:
  std::uint64_t state_;
};

/// A token as it lies at its expert, and what it reads as there.
struct row {
  std::vector<std::byte> bytes;
  std::vector<std::byte> scales;
  std::vector<float> values;
};

template <class T>
std::vector<std::byte> bytes_of(std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

/// A codec's row for a token.
using encode_function = row (*)(std::span<const peerbus::bf16> token);

template <class Codec>
struct codec_of;

template <>
struct codec_of<peerbus::codec::bf16> {
  static peerbus::codec::bf16 make() { return {}; }
  static row encode(std::span<const peerbus::bf16> token);
};

template <>
struct codec_of<peerbus::codec::int8_per_token> {
  static peerbus::codec::int8_per_token make() { return {}; }
  static row encode(std::span<const peerbus::bf16> token);
};

template <class Scales>
struct codec_of<peerbus::codec::fp8_e4m3_per_128<Scales>> {
  static constexpr bool power_of_two = std::same_as<Scales, peerbus::codec::ue8m0_scales>;

  static peerbus::codec::fp8_e4m3_per_128<Scales> make() { return {}; }
  static row encode(std::span<const peerbus::bf16> token);
};

template <>
struct codec_of<peerbus::codec::archetype> {
  static peerbus::codec::archetype make() { return peerbus::codec::archetype::make(); }
  static row encode(std::span<const peerbus::bf16> token);
};

/// What a user might bring: elements of 16 bytes, more bytes than the token has, two scales, and a
/// parameter that the codec carries.
class user_codec {
 public:
  struct alignas(16) element {
    std::uint32_t words[4];
  };
  static constexpr std::string_view name = "user's mirrored";

  explicit user_codec(std::uint16_t mask) noexcept : mask_{mask} {}

  static constexpr std::size_t row_bytes(std::size_t hidden) noexcept { return 2 * hidden + 16; }
  static constexpr std::size_t scale_bytes(std::size_t) noexcept { return 8; }

  void encode(std::span<const peerbus::bf16> token, std::span<std::byte> at,
              std::span<std::byte> scales) const noexcept {
    std::memset(at.data(), 0x5a, 16);
    for (std::size_t i = 0; i < token.size(); ++i) {
      const auto bits = static_cast<std::uint16_t>(token[token.size() - 1 - i].bits ^ mask_);
      std::memcpy(at.data() + 16 + 2 * i, &bits, 2);
    }
    const std::uint64_t size = token.size();
    std::memcpy(scales.data(), &size, 8);
  }
  void decode(std::span<const std::byte> at, std::span<const std::byte>,
              std::span<float> out) const noexcept {
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, at.data() + 16 + 2 * (out.size() - 1 - i), 2);
      out[i] =
          static_cast<float>(peerbus::bf16::from_bits(static_cast<std::uint16_t>(bits ^ mask_)));
    }
  }

 private:
  std::uint16_t mask_;
};
static_assert(peerbus::token_codec<user_codec> && !peerbus::verbatim_codec<user_codec>);

template <>
struct codec_of<user_codec> {
  static constexpr std::uint16_t mask = 0x2b1d;
  static user_codec make() { return user_codec{mask}; }
  static row encode(std::span<const peerbus::bf16> token);
};

struct shape {
  std::size_t ranks;
  std::size_t experts;
  std::size_t hidden;
  std::size_t top_k;
};

/// What one rank gives to a dispatch.
struct input {
  std::size_t count = 0;
  std::vector<peerbus::bf16> tokens;
  std::vector<std::int64_t> experts;
  std::vector<float> weights;
};

enum class routes { uniform, zipf, holes, one_expert, nowhere };

/// The experts of one token, all different.
std::vector<std::int64_t> choose(random& numbers, const shape& of, routes kind);

/// Values of a lattice that bf16 holds exactly, different for every (rank, token, channel) nearby;
/// the first channels hold the token's identity as signs, which survive any quantisation.
input make_input(const shape& of, std::size_t rank, std::size_t count, routes kind,
                 std::uint64_t seed);

/// Which rank holds each expert: dealt out in order, the first ranks one more if it does not
/// divide.
std::vector<std::size_t> owners(const shape& of);

struct origin {
  std::size_t rank;
  std::size_t token;
};

/// The rows that expert `e` must receive, in order.
std::vector<origin> rows_of(const shape& of, const std::vector<input>& inputs, std::size_t expert);

inline std::span<const peerbus::bf16> token_of(const shape& of, const input& from,
                                               std::size_t token) {
  return std::span{from.tokens}.subspan(token * of.hidden, of.hidden);
}

/// What combine must give to the rank that put `mine` in.
std::vector<peerbus::bf16> combined(const shape& of, const input& mine, encode_function encode);
template <class Codec>
std::vector<peerbus::bf16> combined(const shape& of, const input& mine) {
  return combined(of, mine, codec_of<Codec>::encode);
}

}  // namespace oracle
