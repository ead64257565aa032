// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/bf16.hpp>

/// Rounding and the experts of tests, computed plainly and without the library's arithmetic.
namespace oracle {

inline float widen(peerbus::bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Rounds to the nearer of the two neighbours of `value`, and to the even one if both are as near.
/// Every NaN becomes 0x7fc0.
peerbus::bf16 round(float value);

/// Rounds each of `values`.
void round(std::span<const float> values, std::span<peerbus::bf16> out);

/// Returns what expert `expert` makes of one value: each expert something else, so that a row at
/// the wrong expert, or an output read from the wrong place, cannot pass.
peerbus::bf16 apply(std::size_t expert, std::size_t channel, float value);

/// Writes what the expert makes of a row.
void apply(std::size_t expert, std::span<const float> values, std::span<peerbus::bf16> out);

/// Adds `weight` times the output of `expert` for each of `values` to `sums`.
void add_outputs(std::size_t expert, float weight, std::span<const float> values,
                 std::span<float> sums);

}  // namespace oracle
