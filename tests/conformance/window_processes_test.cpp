// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <cstddef>

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

#define PEERBUS_TEST_GROUPS \
  unified_bus_processes, indirect_processes, any_processes, any_direct_processes

TEST_CASE_TEMPLATE("a fresh window is zero", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : test::sizes_for<Group>()) conformance::check_fresh_windows<Group>(n);
}

TEST_CASE_TEMPLATE("put, signal, put_signal and wait among all ranks", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : test::sizes_for<Group>()) conformance::check_all_to_all<Group>(n);
}

TEST_CASE_TEMPLATE("get", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : test::sizes_for<Group>()) conformance::check_get<Group>(n);
}

TEST_CASE_TEMPLATE("a window without the type of its transport", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : test::sizes_for<Group>()) conformance::check_any_window<Group>(n);
}

TEST_CASE_TEMPLATE("what does not exist is refused before a byte is written", Group,
                   PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : test::sizes_for<Group>()) conformance::check_ranges<Group>(n);
}

TEST_CASE_TEMPLATE("memory outside windows, as the capabilities say", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : test::sizes_for<Group>()) conformance::check_foreign_memory<Group>(n);
}

TEST_CASE_TEMPLATE("signals hold 64 bits and never fall", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : test::sizes_for<Group>()) conformance::check_signals<Group>(n);
}

TEST_CASE_TEMPLATE("short waits learn of a rank that left", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {2U, 3U, 5U}) conformance::check_short_waits<Group>(n);
}

TEST_CASE_TEMPLATE("a signal comes after its puts, and signals in order", Group,
                   PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : test::sizes_for<Group>()) conformance::check_stream<Group>(n);
}

TEST_CASE_TEMPLATE("a barrier orders what came before it", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : test::sizes_for<Group>()) conformance::check_barrier<Group>(n, 300);
}

TEST_CASE_TEMPLATE("fetch_add", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : test::sizes_for<Group>()) conformance::check_fetch_add<Group>(n);
}

TEST_CASE_TEMPLATE("windows are independent", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : test::sizes_for<Group>()) conformance::check_many_windows<Group>(n);
}

TEST_CASE_TEMPLATE("peer memory loads and stores", Group, unified_bus_processes,
                   any_direct_processes) {
  for (const std::size_t n : test::sizes_for<Group>()) conformance::check_peer_memory<Group>(n);
}

TEST_CASE_TEMPLATE("one signal tells all ranks", Group, unified_bus_processes,
                   any_direct_processes) {
  for (const std::size_t n : test::sizes_for<Group>()) conformance::check_peer_signals<Group>(n);
}

#undef PEERBUS_TEST_GROUPS

}  // namespace window_processes_test
