// SPDX-License-Identifier: MIT
#include "support/instances.hpp"

TEST_LAYOUT_INSTANCES(, peerbus::loopback);
TEST_SLOT_INSTANCES(, peerbus::loopback);
