// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <doctest/doctest.h>

#include <peerbus/transport/any_direct_transport.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/fault.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "conformance/window_suite.hpp"
#include "support/grouped.hpp"
#include "support/indirect.hpp"
#include "support/ranks.hpp"

namespace window_threads_test {

namespace {

using loopback_threads = test::threads_over<peerbus::loopback>;
using unified_bus_threads = test::threads_over<peerbus::unified_bus>;
using indirect_threads = test::threads_over<test::indirect<peerbus::loopback>>;
using any_threads = test::any_over<
    peerbus::any_transport, unified_bus_threads, indirect_threads,
    test::threads_over<test::lazy_planes<1>>, test::threads_over<test::lazy_planes<2>>,
    test::threads_over<test::mailed_planes<3>>, test::threads_over<test::three_planes>,
    test::threads_over<peerbus::fault<peerbus::loopback>>>;
using any_direct_threads = test::any_over<peerbus::any_direct_transport, loopback_threads,
                                          test::subgroup_of<loopback_threads>>;

}  // namespace

PEERBUS_TEST_WINDOWS(loopback_threads, unified_bus_threads, indirect_threads, any_threads,
                     any_direct_threads)
PEERBUS_TEST_DIRECT_WINDOWS(loopback_threads, unified_bus_threads, any_direct_threads)

TEST_CASE_TEMPLATE("a window without the type of its transport", Group, loopback_threads,
                   unified_bus_threads, indirect_threads, any_threads, any_direct_threads,
                   test::threads_over<test::lazy_planes<2>>,
                   test::threads_over<test::mailed_planes<3>>) {
  for (const std::size_t n : test::sizes_for<Group>()) conformance::check_any_window<Group>(n);
}

}  // namespace window_threads_test
