// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <doctest/doctest.h>

#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/simulated.hpp>

#include "conformance/window_suite.hpp"
#include "simulated/support.hpp"
#include "support/ranks.hpp"

namespace window_test {

namespace {
using simulated_ranks = simulated_test::simulated_over<peerbus::simulated, 3>;
using any_ranks =
    test::any_over<peerbus::any_transport, simulated_ranks, test::subgroup_of<simulated_ranks>>;
}  // namespace

PEERBUS_TEST_WINDOWS(any_ranks)

TEST_CASE("a window without the type of its transport") {
  for (const std::size_t n : {1U, 3U, 8U}) conformance::check_any_window<any_ranks>(n);
}

}  // namespace window_test
