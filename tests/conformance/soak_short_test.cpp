// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300 serial
#include <doctest/doctest.h>

#include <peerbus/transport/loopback.hpp>

#include "conformance/soak.hpp"
#include "support/indirect.hpp"
#include "support/ranks.hpp"

namespace soak_short_test {

TEST_CASE("loopback: thousands of operations in a row, for the sanitizers") {
  conformance::check_soak<test::threads_over<peerbus::loopback>>(2, 2'000);
  conformance::check_soak<test::threads_over<peerbus::loopback>>(3, 1'000);
}

TEST_CASE("the staged path: thousands of operations in a row") {
  conformance::check_soak<test::threads_over<test::indirect<peerbus::loopback>>>(2, 2'000);
}

}  // namespace soak_short_test
