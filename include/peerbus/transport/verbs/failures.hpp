// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <peerbus/core/text.hpp>
#include <peerbus/transport/verbs/link.hpp>
#include <peerbus/transport/verbs/link_failure.hpp>
#include <peerbus/transport/verbs/resources.hpp>

namespace peerbus::detail::rdma {

/// Returns the number of the device that probably caused a break that was found on device `found`.
/// A peer that notices a break closes its connections on all devices, so the break may be found on
/// a working device. A device whose port is not active is the more likely cause.
[[nodiscard]] inline std::size_t likely_cause(const resources& own, std::size_t found) noexcept {
  const auto rails = own.rails();
  if (rails.size() == 1 || !rails[found]->port().is_active()) return found;
  for (std::size_t i = 0; i < rails.size(); ++i)
    if (!rails[i]->port().is_active()) return i;
  return found;
}

/// Returns a text such as "no connection to rank 3 any more: transport retry counter exceeded: …",
/// and the peers that have not acknowledged requests, with the devices if the rank has several.
/// Empty if there are none.
[[nodiscard]] inline std::string describe_failures(const resources& own,
                                                   std::span<const link> links) {
  const char* const kind = own.is_bulk() ? "bulk " : "";
  std::string text;
  for (const link& peer_link : links) {
    const link_failure& failure = peer_link.failure();
    const std::uint32_t open = peer_link.in_flight();
    if (!failure.is_set() && open == 0) continue;
    const std::size_t rail_number = likely_cause(
        own, failure.is_set() ? failure.rail() : own.rail_of(peer_link.busiest_queue()));
    const std::string over =
        own.rails().size() == 1
            ? std::string{}
            : concat(" over device ", own.rails()[rail_number]->port().device_name());
    text += text.empty() ? "" : "; ";
    text += failure.is_set()
                ? concat("no ", kind, "connection to ", peer_link.peer(), " any more", over, ": ",
                         failure.describe())
                : concat(peer_link.peer(), " has not acknowledged ", open, " ", kind,
                         "requests yet", over, " (its link may be down, or it is busy)");
  }
  return text;
}

/// Returns "; port 1 of this rank's device rxe1 is not active any more", for each inactive port.
[[nodiscard]] inline std::string describe_inactive_ports(const resources& own) {
  std::string text;
  for (const auto& each : own.rails())
    if (!each->port().is_active())
      text += concat("; port ", unsigned{each->port().number}, " of this rank's device ",
                     each->port().device_name(), " is not active any more");
  return text;
}

}  // namespace peerbus::detail::rdma
