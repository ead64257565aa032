// SPDX-License-Identifier: MIT
#include <peerbus/impl/instantiations.hpp>

PEERBUS_INSTANCES(, peerbus::unified_bus);
