// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/bootstrap/event_listeners.hpp>

namespace peerbus::c_library {

/// Adds a listener that fires the USDT probes peerbus:begin and peerbus:end. Does nothing if the
/// library was built without <sys/sdt.h>.
void add_probes(event_listeners& listeners);

}  // namespace peerbus::c_library
