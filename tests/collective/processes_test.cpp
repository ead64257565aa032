// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/transport/unified_bus.hpp>

#include "collective/suite.hpp"
#include "collective/windows.hpp"
#include "support/groups.hpp"
#include "support/indirect.hpp"
#include "support/ranks.hpp"

namespace processes_test {

namespace {
using indirect_processes = test::processes_over<test::indirect<peerbus::unified_bus>>;
}  // namespace

#define PEERBUS_TEST_GROUPS test::direct_processes, indirect_processes

TEST_CASE_TEMPLATE("all operations, in many slices", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {1U, 2U, 3U, 4U, 5U, 8U})
    collective_suite::on_team<Group>(n, collective_suite::check_small,
                                     collective_suite::small_scratch);
}

TEST_CASE_TEMPLATE("large operands", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {2U, 5U})
    collective_suite::on_team<Group>(n, collective_suite::check_large);
}

TEST_CASE_TEMPLATE("operands in windows", Group, test::direct_processes) {
  for (const std::size_t n : {1U, 2U, 3U, 5U, 8U}) collective_suite::check_windows<Group>(n);
}

#undef PEERBUS_TEST_GROUPS

}  // namespace processes_test
