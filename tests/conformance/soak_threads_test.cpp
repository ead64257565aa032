// SPDX-License-Identifier: MIT
// ctest: search timeout=86400 serial
#include <doctest/doctest.h>

#include <peerbus/transport/loopback.hpp>

#include "conformance/soak.hpp"
#include "support/ranks.hpp"
#include "support/search.hpp"

namespace soak_threads_test {

TEST_CASE("loopback: 200 000 operations in a row, a tenth under a sanitizer") {
  conformance::check_soak<test::threads_over<peerbus::loopback>>(2,
                                                                 test::soak_repetitions(100'000));
}

}  // namespace soak_threads_test
