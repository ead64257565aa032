// SPDX-License-Identifier: MIT
#include <peerbus/moe/compiled_instances.hpp>

PEERBUS_INSTANCES(, peerbus::any_transport);
