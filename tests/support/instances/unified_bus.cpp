// SPDX-License-Identifier: MIT
#include "support/instances.hpp"

TEST_LAYOUT_INSTANCES(, peerbus::unified_bus);
