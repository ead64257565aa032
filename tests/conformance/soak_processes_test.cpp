// SPDX-License-Identifier: MIT
// ctest: search timeout=86400 serial
#include <doctest/doctest.h>

#include <peerbus/transport/unified_bus.hpp>

#include "conformance/soak.hpp"
#include "support/ranks.hpp"
#include "support/search.hpp"

namespace soak_processes_test {

TEST_CASE("unified_bus: 200 000 operations in a row, a tenth under a sanitizer") {
  conformance::check_soak<test::processes_over<peerbus::unified_bus>>(
      2, test::soak_repetitions(100'000));
}

}  // namespace soak_processes_test
