// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/peerbus.hpp>

inline constexpr std::size_t hidden = 256;

// The sum of the first value of a token of `hidden` values after each codec.
float first_values_through_codecs(std::span<const peerbus::bf16> token);
