// SPDX-License-Identifier: MIT
// ctest: timeout=600 serial
#include <doctest/doctest.h>

#include <peerbus/transport/loopback.hpp>

#include "conformance/soak.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"

namespace soak_threads_test {

TEST_CASE("loopback: 200 000 operations in a row, a tenth under a sanitizer") {
  conformance::check_soak<test::threads_over<peerbus::loopback>>(2, test::repetitions(100'000));
}

}  // namespace soak_threads_test
