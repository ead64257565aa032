// SPDX-License-Identifier: MIT
// ctest: timeout=400
#include <doctest/doctest.h>

#include <peerbus/transport/any_direct_transport.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "conformance/exchange_suite.hpp"
#include "support/indirect.hpp"
#include "support/ranks.hpp"

namespace exchange_processes_test {

namespace {

using unified_bus = test::processes_over<peerbus::unified_bus>;
using indirect = test::processes_over<test::indirect<peerbus::unified_bus>>;
using direct = test::any_over<peerbus::any_direct_transport, unified_bus>;
using staged = test::any_over<peerbus::any_transport, unified_bus, indirect>;

}  // namespace

PEERBUS_TEST_EXCHANGES(direct, staged)

TEST_CASE_TEMPLATE("codec archetype and a user's codec", Group, direct, staged) {
  conformance::check_codecs<Group>();
}

}  // namespace exchange_processes_test
