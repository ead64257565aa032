// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <peerbus/core/text.hpp>
#include <peerbus/transport/fabric/link.hpp>
#include <peerbus/transport/fabric/resources.hpp>
#include <peerbus/transport/traffic_class.hpp>

namespace peerbus::detail::ofi {

/// Returns a text such as "no connection to rank 3 any more: …", for each link that is broken or
/// closed, and for each peer with requests in flight. Empty if there are none.
inline std::string describe_failures(const resources& own, std::span<const link> links) {
  const bool is_bulk = own.traffic() == traffic_class::bulk;
  std::string text;
  for (const link& peer_link : links) {
    const std::uint32_t open = peer_link.requests().count().in_flight();
    if (!peer_link.failure().is_set() && !peer_link.has_left() && open == 0) continue;
    text += text.empty() ? "" : "; ";
    if (peer_link.failure().is_set())
      text += concat("no ", is_bulk ? "bulk " : "", "connection to ", peer_link.peer(),
                     " any more: ", peer_link.failure().describe(own.queue()));
    else if (peer_link.has_left())
      text += concat(peer_link.peer(), " has closed its end", is_bulk ? " for bulk traffic" : "");
    else
      text += concat(peer_link.peer(), " has not taken ", open,
                     " requests yet (it is busy, or cut off)");
  }
  return text;
}

}  // namespace peerbus::detail::ofi
