// SPDX-License-Identifier: MIT
#include "support/instances.hpp"

TEST_DEEP_EP_INSTANCES(, peerbus::unified_bus);
TEST_CANN_INSTANCES(, peerbus::unified_bus);
