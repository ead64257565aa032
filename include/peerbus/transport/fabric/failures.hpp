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

/// Returns "no connection to rank 3 any more: …" for each link that is broken or closed, and the
/// peers with requests in flight. Empty if there are none.
inline std::string describe_failures(const resources& own, std::span<const link> links) {
  const bool is_bulk = own.traffic() == traffic_class::bulk;
  std::string text;
  for (const link& to : links) {
    const std::uint32_t open = to.requests().count().in_flight();
    if (!to.failure().is_set() && !to.has_left() && open == 0) continue;
    text += text.empty() ? "" : "; ";
    if (to.failure().is_set())
      text += concat("no ", is_bulk ? "bulk " : "", "connection to ", to.peer(),
                     " any more: ", to.failure().describe(own.queue()));
    else if (to.has_left())
      text += concat(to.peer(), " has closed its end", is_bulk ? " for bulk traffic" : "");
    else
      text += concat(to.peer(), " has not taken ", open, " requests yet (it is busy, or cut off)");
  }
  return text;
}

}  // namespace peerbus::detail::ofi
