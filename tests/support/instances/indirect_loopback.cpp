// SPDX-License-Identifier: MIT
#include "support/instances.hpp"

TEST_COMMON_INSTANCES(, test::indirect_loopback);
TEST_LAYOUT_INSTANCES(, test::indirect_loopback);
TEST_SLOT_INSTANCES(, test::indirect_loopback);
