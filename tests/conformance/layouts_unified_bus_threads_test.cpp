// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "conformance/layout_suite.hpp"
#include "support/indirect.hpp"
#include "support/ranks.hpp"

namespace layouts_unified_bus_threads_test {

namespace {
using unified_bus = test::threads_over<peerbus::unified_bus>;
using indirect = test::threads_over<test::indirect<peerbus::loopback>>;
using direct = test::any_over<peerbus::any_transport, unified_bus>;
using staged = test::any_over<peerbus::any_transport, indirect>;
}  // namespace

TEST_CASE_TEMPLATE("every layout, outputs at either end, attachments", Group, direct, staged) {
  for (const std::size_t n : test::sizes_for<Group>())
    conformance::check_layouts<Group, peerbus::codec::int8_per_token>(n);
}

TEST_CASE_TEMPLATE("the same input gives the same bytes, every time", Group, direct, staged) {
  for (const std::size_t n : {2U, 5U})
    conformance::check_layouts_repeatable<Group, peerbus::codec::int8_per_token>(n);
}

}  // namespace layouts_unified_bus_threads_test
