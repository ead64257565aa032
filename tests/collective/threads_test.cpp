// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "collective/suite.hpp"
#include "collective/windows.hpp"
#include "support/background.hpp"
#include "support/groups.hpp"
#include "support/indirect.hpp"
#include "support/partly_direct.hpp"
#include "support/ranks.hpp"

namespace threads_test {

namespace {

using loopback_threads = test::threads_over<peerbus::loopback>;
using unified_bus_threads = test::threads_over<peerbus::unified_bus>;
using indirect_threads = test::threads_over<test::indirect<peerbus::loopback>>;
using partly_direct_threads = test::threads_over<test::partly_direct<peerbus::loopback>>;
using background_threads = test::threads_over<test::background<peerbus::loopback>>;

}  // namespace

#define PEERBUS_TEST_GROUPS                                                       \
  loopback_threads, unified_bus_threads, indirect_threads, partly_direct_threads, \
      background_threads, test::direct_threads, test::staged_threads

TEST_CASE_TEMPLATE("all operations, in many slices", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {1U, 2U, 3U, 4U, 5U, 8U})
    collective_suite::on_team<Group>(n, collective_suite::check_small,
                                     collective_suite::small_scratch);
}

TEST_CASE_TEMPLATE("all operations, in one slice", Group, loopback_threads, indirect_threads) {
  for (const std::size_t n : {2U, 3U})
    collective_suite::on_team<Group>(n, collective_suite::check_small);
}

TEST_CASE_TEMPLATE("large operands", Group, loopback_threads, indirect_threads) {
  for (const std::size_t n : {2U, 3U})
    collective_suite::on_team<Group>(n, collective_suite::check_large);
}

TEST_CASE_TEMPLATE("operands in windows", Group, test::direct_threads, test::staged_threads) {
  for (const std::size_t n : {1U, 2U, 3U, 5U, 8U}) collective_suite::check_windows<Group>(n);
}

TEST_CASE("a window on some ranks only is an error on all") {
  collective_suite::check_window_mismatch<test::direct_threads>();
}

#undef PEERBUS_TEST_GROUPS

}  // namespace threads_test
