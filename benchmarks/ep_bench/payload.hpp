// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <peerbus/codec/as_given.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/concept.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/fp8.hpp>

#include "ep_bench/random.hpp"

namespace ep_bench {

/// Which numbers a codec keeps exactly.
enum class grain {
  integers,      ///< whole numbers up to 127, which is there (int8, bf16)
  significant4,  ///< at most four significant bits, up to 112, which each group of 128 has (fp8)
  given4         ///< the same, as codes of E4M3, which have no scales (fp8_as_given)
};

/// The tokens that travel: whole numbers of at most 127, times a power of two per token. The codec
/// of the run keeps those exactly, so that what arrives is known without knowing how it rounds. The
/// first columns spell the home rank and the token's index.
class payload {
 public:
  static constexpr std::size_t identity_columns = 14;

  explicit payload(std::uint64_t seed, grain of = grain::integers) noexcept
      : seed_{seed}, grain_{of} {}

  /// Fills `codes`, one per column, and returns what to multiply them by.
  float fill(std::size_t rank, std::size_t token, std::span<std::int8_t> codes) const noexcept {
    random_sequence random{mix(mix(seed_) ^ rank) + token};
    const std::uint64_t exponent = random.next() % 7;
    // Eight codes from each number, as a run has to make its tokens many times to check rows.
    for (std::size_t i = 0; i < codes.size(); i += sizeof(std::uint64_t)) {
      const std::uint64_t eight = random.next();
      std::memcpy(&codes[i], &eight, std::min(sizeof eight, codes.size() - i));
    }
    if (grain_ == grain::integers) {
      for (std::int8_t& code : codes) code = std::max<std::int8_t>(code, -127);
    } else {
      for (std::int8_t& code : codes) code = four_bits(static_cast<std::uint8_t>(code));
      for (std::size_t i = 0; i < codes.size(); i += 128) codes[i] = 112;
    }
    const auto digit = [](std::size_t value, unsigned place) {
      return static_cast<std::int8_t>((value >> (4 * place)) % 16);
    };
    std::array<std::int8_t, identity_columns> identity{
        // The largest magnitude, which makes the scale a power of two.
        grain_ == grain::integers ? std::int8_t{127} : std::int8_t{112},
        64};  // Times an expert's factor this is the factor, undamaged by rounding.
    for (unsigned place = 0; place < 4; ++place) identity[2 + place] = digit(rank, place);
    for (unsigned place = 0; place < 8; ++place) identity[6 + place] = digit(token, place);
    std::memcpy(codes.data(), identity.data(), identity.size());
    if (grain_ == grain::given4) return 4.0F;  // That by which `as_e4m3` multiplies.
    return std::ldexp(1.0F, static_cast<int>(exponent) - 3);
  }

 private:
  /// Three bits behind a leading one, three places to shift it, a sign.
  static std::int8_t four_bits(std::uint8_t random) noexcept {
    const int size = std::min((8 + random % 8) << (random / 8 % 4), 112);
    return static_cast<std::int8_t>(random < 128 ? size : -size);
  }

  std::uint64_t seed_;
  grain grain_;
};

/// A token as the model has it.
inline void as_bf16(std::span<const std::int8_t> codes, float unit, std::byte* row) noexcept {
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const peerbus::bf16 value{static_cast<float>(codes[i]) * unit};
    std::memcpy(row + i * sizeof value, &value, sizeof value);
  }
}

/// The tokens of `rank` in bf16, as many as `tokens` has room for.
inline void fill_tokens(const payload& content, std::size_t rank, std::size_t hidden,
                        std::span<peerbus::bf16> tokens) {
  std::vector<std::int8_t> codes(hidden);
  for (std::size_t t = 0; t < tokens.size() / hidden; ++t) {
    const float unit = content.fill(rank, t, codes);
    as_bf16(codes, unit, std::as_writable_bytes(tokens.subspan(t * hidden, hidden)).data());
  }
}

template <class Codec>
inline constexpr bool is_fp8 = std::same_as<typename Codec::element, peerbus::fp8_e4m3>;

template <class Codec>
inline constexpr bool is_given = std::same_as<Codec, peerbus::codec::fp8_e4m3_as_given>;

template <class Codec>
inline constexpr grain grain_of = is_given<Codec> ? grain::given4
                                  : is_fp8<Codec> ? grain::significant4
                                                  : grain::integers;

/// The E4M3 number of value 4 x `code` (so that 112, the largest, becomes 448, the largest), for a
/// code of four significant bits: sign, exponent with a bias of 7, three bits of mantissa.
inline std::uint8_t as_e4m3(std::int8_t code) noexcept {
  const auto size = static_cast<unsigned>(code < 0 ? -code : code);
  if (size == 0) return 0;
  const auto top = static_cast<unsigned>(std::bit_width(size)) - 1;
  const unsigned mantissa = (size << 3U >> top) % 8;
  return static_cast<std::uint8_t>((code < 0 ? 0x80U : 0U) | (top + 2 + 7) << 3U | mantissa);
}

/// A token as it must look on the wire.
template <class Codec>
void as_row(std::span<const std::int8_t> codes, float unit, std::byte* row,
            std::byte* scale) noexcept {
  if constexpr (std::same_as<Codec, peerbus::codec::bf16>) {
    as_bf16(codes, unit, row);
  } else if constexpr (is_fp8<Codec>) {
    std::transform(codes.begin(), codes.end(), row,
                   [](std::int8_t code) { return std::byte{as_e4m3(code)}; });
    if constexpr (is_given<Codec>) return;
    const float step = unit / 4;
    std::memset(scale, 0, Codec::scale_bytes(codes.size()));
    for (std::size_t group = 0; group < codes.size() / 128; ++group) {
      if constexpr (std::same_as<Codec, peerbus::codec::fp8_e4m3_per_128_ue8m0>)
        scale[group] = static_cast<std::byte>(std::ilogb(step) + 127);
      else
        std::memcpy(scale + group * sizeof step, &step, sizeof step);
    }
  } else {
    std::memcpy(row, codes.data(), codes.size());
    std::memcpy(scale, &unit, sizeof unit);
  }
}

/// A codec that is chosen at run time: the sizes of one token, and how it looks.
struct wire_format {
  std::size_t token_bytes;  ///< as the caller gives it
  std::size_t row_bytes;
  std::size_t scale_bytes;
  grain of_tokens;
  /// Writes a token as the caller gives it.
  void (*as_token)(std::span<const std::int8_t> codes, float unit, std::byte* token) noexcept;
  /// Writes a token as it must look on the wire.
  void (*as_row)(std::span<const std::int8_t> codes, float unit, std::byte* row,
                 std::byte* scale) noexcept;
  /// Encodes a token as the codec does.
  void (*encode)(std::span<const std::byte> token, std::span<std::byte> row,
                 std::span<std::byte> scales) noexcept;

  template <class Codec>
  [[nodiscard]] static wire_format of(std::size_t hidden) noexcept {
    using element = peerbus::token_of<Codec>;
    return {hidden * sizeof(element),
            Codec::row_bytes(hidden),
            Codec::scale_bytes(hidden),
            grain_of<Codec>,
            [](std::span<const std::int8_t> codes, float unit, std::byte* token) noexcept {
              if constexpr (is_given<Codec>)
                ep_bench::as_row<Codec>(codes, unit, token, nullptr);
              else
                as_bf16(codes, unit, token);
            },
            [](std::span<const std::int8_t> codes, float unit, std::byte* row,
               std::byte* scale) noexcept { ep_bench::as_row<Codec>(codes, unit, row, scale); },
            [](std::span<const std::byte> token, std::span<std::byte> row,
               std::span<std::byte> scales) noexcept {
              Codec{}.encode(
                  {reinterpret_cast<const element*>(token.data()), token.size() / sizeof(element)},
                  row, scales);
            }};
  }
};

/// The tokens of `rank` as the caller of `format` gives them, as many as `tokens` has room for.
inline void fill_tokens(const payload& content, const wire_format& format, std::size_t rank,
                        std::size_t hidden, std::span<std::byte> tokens) {
  std::vector<std::int8_t> codes(hidden);
  for (std::size_t t = 0; t < tokens.size() / format.token_bytes; ++t) {
    const float unit = content.fill(rank, t, codes);
    format.as_token(codes, unit, tokens.data() + t * format.token_bytes);
  }
}

}  // namespace ep_bench
