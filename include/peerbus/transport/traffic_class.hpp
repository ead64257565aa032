// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string_view>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

/// The class of the traffic of a window, by which transports with queues decide what to send first.
/// docs/transports.md says what each transport does with it.
enum class traffic_class : std::uint8_t {
  latency,  ///< short operations that a rank waits for, such as a dispatch
  bulk      ///< large transfers that may take longer, such as weights or a KV cache
};

/// Returns "latency" or "bulk", for errors.
[[nodiscard]] constexpr std::string_view name_of(traffic_class traffic) noexcept {
  return traffic == traffic_class::bulk ? "bulk" : "latency";
}

}  // namespace peerbus
