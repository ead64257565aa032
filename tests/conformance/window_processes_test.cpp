// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <doctest/doctest.h>

#include <peerbus/transport/any_direct_transport.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "conformance/window_suite.hpp"
#include "support/indirect.hpp"
#include "support/ranks.hpp"

namespace window_processes_test {

namespace {

using unified_bus_processes = test::processes_over<peerbus::unified_bus>;
using indirect_processes = test::processes_over<test::indirect<peerbus::unified_bus>>;
using any_processes =
    test::any_over<peerbus::any_transport, unified_bus_processes, indirect_processes>;
using any_direct_processes = test::any_over<peerbus::any_direct_transport, unified_bus_processes,
                                            test::subgroup_of<unified_bus_processes>>;

}  // namespace

PEERBUS_TEST_WINDOWS(unified_bus_processes, indirect_processes, any_processes, any_direct_processes)
PEERBUS_TEST_DIRECT_WINDOWS(unified_bus_processes, any_direct_processes)

TEST_CASE_TEMPLATE("a window without the type of its transport", Group, unified_bus_processes,
                   indirect_processes, any_processes, any_direct_processes) {
  for (const std::size_t n : test::sizes_for<Group>()) conformance::check_any_window<Group>(n);
}

}  // namespace window_processes_test
