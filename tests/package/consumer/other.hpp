// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/peerbus.hpp>

inline constexpr std::size_t hidden = 256;

// The sum of the first value of a token of `hidden` values after each codec.
float first_values_through_codecs(std::span<const peerbus::bf16> token);

/// Uses, in this translation unit, a communicator that the other one made. Returns whether what one
/// rank wrote is what it reads.
bool window_of_another_unit(peerbus::communicator<peerbus::loopback>& comm);
