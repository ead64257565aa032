// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/decorator.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/unified_bus.hpp>

namespace bench {

/// A unified_bus that gives no addresses.
using put_only_bus =
    peerbus::transport_decorator<peerbus::unified_bus,
                                 peerbus::transport_refinements{.signal_each = true}>;
static_assert(!peerbus::direct_transport<put_only_bus>);

}  // namespace bench
