// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/bootstrap/event_listeners.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::c_library {

/// Adds a listener that fires the USDT probes peerbus:begin and peerbus:end. If the library was
/// built without <sys/sdt.h>, says so instead on stderr, once for a process.
void add_probes(event_listeners& listeners, rank_id rank);

}  // namespace peerbus::c_library
