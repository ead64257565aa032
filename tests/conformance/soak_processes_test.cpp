// SPDX-License-Identifier: MIT
// ctest: timeout=600 serial
#include <doctest/doctest.h>

#include <peerbus/transport/unified_bus.hpp>

#include "conformance/soak.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"

namespace soak_processes_test {

TEST_CASE("unified_bus: 200 000 operations in a row, a tenth under a sanitizer") {
  conformance::check_soak<test::processes_over<peerbus::unified_bus>>(2,
                                                                      test::repetitions(100'000));
}

}  // namespace soak_processes_test
