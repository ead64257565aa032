// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/core/bf16.hpp>

#include "ep_bench/random.hpp"

namespace ep_bench {

/// The tokens that travel: whole numbers of at most 127, times a power of two per token. Every
/// codec keeps those exactly, so that what arrives is known without knowing how a codec rounds. The
/// first columns spell the home rank and the token's index.
class payload {
 public:
  static constexpr std::size_t identity_columns = 9;

  explicit payload(std::uint64_t seed) noexcept : seed_{seed} {}

  /// Fills `codes`, one per column, and returns what to multiply them by.
  float fill(std::size_t rank, std::size_t token, std::span<std::int8_t> codes) const noexcept {
    random_sequence random{mix(mix(seed_) ^ rank) + token};
    const std::uint64_t exponent = random.next() % 7;
    for (std::int8_t& code : codes)
      code = static_cast<std::int8_t>(static_cast<int>(random.next() % 255) - 127);
    const auto digit = [](std::size_t value, unsigned place) {
      return static_cast<std::int8_t>((value >> (7 * place)) % 128);
    };
    const std::array<std::int8_t, identity_columns> identity{
        127,  // The largest magnitude, which makes the scale of int8 the power of two.
        64,   // Times an expert's factor this is the factor, undamaged by rounding.
        digit(rank, 0),
        digit(rank, 1),
        digit(token, 0),
        digit(token, 1),
        digit(token, 2),
        digit(token, 3),
        digit(token, 4)};
    std::memcpy(codes.data(), identity.data(), identity.size());
    return std::ldexp(1.0F, static_cast<int>(exponent) - 3);
  }

 private:
  std::uint64_t seed_;
};

/// A token as the model has it.
inline void as_bf16(std::span<const std::int8_t> codes, float unit, std::byte* row) noexcept {
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const peerbus::bf16 value{static_cast<float>(codes[i]) * unit};
    std::memcpy(row + i * sizeof value, &value, sizeof value);
  }
}

/// A token as it must look on the wire.
template <class Codec>
void as_row(std::span<const std::int8_t> codes, float unit, std::byte* row,
            std::byte* scale) noexcept {
  if constexpr (std::same_as<Codec, peerbus::codec::bf16>) {
    as_bf16(codes, unit, row);
  } else {
    std::memcpy(row, codes.data(), codes.size());
    std::memcpy(scale, &unit, sizeof unit);
  }
}

}  // namespace ep_bench
