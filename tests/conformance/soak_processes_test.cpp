// SPDX-License-Identifier: MIT
// ctest: search timeout=86400 serial
#include <doctest/doctest.h>

#include <peerbus/transport/unified_bus.hpp>

#include "bootstrap/support.hpp"
#include "conformance/random_soak.hpp"
#include "conformance/soak.hpp"
#include "support/ranks.hpp"
#include "support/search.hpp"

namespace soak_processes_test {

TEST_CASE("unified_bus: 160 000 operations in a row, a tenth under a sanitizer") {
  conformance::check_soak<test::processes_over<peerbus::unified_bus>>(
      2, test::soak_repetitions(80'000));
}

TEST_CASE("unified_bus with faults: groups that a seed draws") {
  random_soak::check<peerbus::unified_bus, test::as_local>(30);
}

}  // namespace soak_processes_test
