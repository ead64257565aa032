// SPDX-License-Identifier: MIT
#include "support/instances.hpp"

TEST_DEEP_EP_INSTANCES(, peerbus::loopback);
TEST_CANN_INSTANCES(, peerbus::loopback);
