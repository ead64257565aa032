// SPDX-License-Identifier: MIT
#include "support/instances.hpp"

TEST_LAYOUT_INSTANCES(, peerbus::any_transport);
TEST_SLOT_INSTANCES(, peerbus::any_transport);
TEST_AUTOMATIC_INSTANCES(, peerbus::any_transport);
