// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <doctest/doctest.h>

#include <peerbus/transport/unified_bus.hpp>

#include "deep_ep/expanded_suite.hpp"
#include "support/ranks.hpp"

TEST_CASE("the expanded form, processes") {
  expanded::run_all<test::processes_over<peerbus::unified_bus>>();
}
