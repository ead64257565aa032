// SPDX-License-Identifier: MIT
#include <peerbus/impl/instantiations.hpp>

PEERBUS_INSTANCES(, peerbus::loopback);
