// SPDX-License-Identifier: MIT
// ctest: timeout=600
#include <doctest/doctest.h>

#include <peerbus/transport/loopback.hpp>

#include "conformance/soak.hpp"
#include "support/ranks.hpp"

namespace soak_threads_test {

TEST_CASE("loopback: 200 000 operations in a row") {
  conformance::check_soak<test::threads_over<peerbus::loopback>>(2, 100'000);
}

}  // namespace soak_threads_test
