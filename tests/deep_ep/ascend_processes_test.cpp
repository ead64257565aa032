// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <doctest/doctest.h>

#include <peerbus/transport/unified_bus.hpp>

#include "deep_ep/ascend_suite.hpp"
#include "support/ranks.hpp"

TEST_CASE("the Ascend layout, processes") {
  ascend::run_all<test::processes_over<peerbus::unified_bus>>();
}
