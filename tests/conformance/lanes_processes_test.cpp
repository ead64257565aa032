// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "conformance/lanes_suite.hpp"
#include "support/ranks.hpp"

namespace lanes_processes_test {

TEST_CASE("several lanes of each process move the same bytes as one") {
  using processes =
      test::any_over<peerbus::any_transport, test::processes_over<peerbus::unified_bus>>;
  for (const std::size_t ranks : {1U, 2U, 4U})
    for (const std::size_t lanes : {2U, 3U})
      conformance::check_lanes_all_layouts<processes>(ranks, lanes, 8);
}

}  // namespace lanes_processes_test
