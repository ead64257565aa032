// SPDX-License-Identifier: MIT
#include "support/instances.hpp"

TEST_DEEP_EP_INSTANCES(, peerbus::any_direct_transport);
TEST_CANN_INSTANCES(, peerbus::any_direct_transport);
