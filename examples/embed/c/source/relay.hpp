// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus.h>

#include <cstdint>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/config.hpp>

namespace peerbus::c_library {

/// Returns the choice that `given` stands for. Throws: `error` invalid_argument if there is none.
inline moe::relay relay_of(std::uint32_t given) {
  static_assert(PEERBUS_RELAY_NEVER == static_cast<int>(moe::relay::never) &&
                PEERBUS_RELAY_ALWAYS == static_cast<int>(moe::relay::always) &&
                PEERBUS_RELAY_AUTOMATIC == static_cast<int>(moe::relay::automatic));
  if (given > PEERBUS_RELAY_AUTOMATIC)
    throw error{errc::invalid_argument,
                concat("relay is ", given, ", expected 0 to ", PEERBUS_RELAY_AUTOMATIC)};
  return static_cast<moe::relay>(given);
}

/// Returns the type that `given` stands for. Throws: `error` invalid_argument if there is none.
inline moe::relay_sums relay_sums_of(std::uint32_t given) {
  static_assert(PEERBUS_RELAY_SUMS_BF16 == static_cast<int>(moe::relay_sums::bf16) &&
                PEERBUS_RELAY_SUMS_F32 == static_cast<int>(moe::relay_sums::f32));
  if (given > PEERBUS_RELAY_SUMS_F32)
    throw error{errc::invalid_argument,
                concat("relay_sums is ", given, ", expected 0 to ", PEERBUS_RELAY_SUMS_F32)};
  return static_cast<moe::relay_sums>(given);
}

}  // namespace peerbus::c_library
