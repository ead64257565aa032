// SPDX-License-Identifier: MIT
// ctest: timeout=600
#include <doctest/doctest.h>

#include <peerbus/transport/unified_bus.hpp>

#include "conformance/soak.hpp"
#include "support/ranks.hpp"

namespace soak_processes_test {

TEST_CASE("unified_bus: 200 000 operations in a row") {
  conformance::check_soak<test::processes_over<peerbus::unified_bus>>(2, 100'000);
}

}  // namespace soak_processes_test
