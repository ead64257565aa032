// SPDX-License-Identifier: MIT
#include "support/instances.hpp"

TEST_DEEP_EP_INSTANCES(, test::indirect_loopback);
TEST_CANN_INSTANCES(, test::indirect_loopback);
