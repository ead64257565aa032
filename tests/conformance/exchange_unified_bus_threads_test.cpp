// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <doctest/doctest.h>

#include <peerbus/transport/any_direct_transport.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "conformance/exchange_suite.hpp"
#include "support/ranks.hpp"

namespace exchange_unified_bus_threads_test {

namespace {

using unified_bus = test::threads_over<peerbus::unified_bus>;
using direct = test::any_over<peerbus::any_direct_transport, unified_bus>;

}  // namespace

PEERBUS_TEST_EXCHANGES(direct)

TEST_CASE_TEMPLATE("codec archetype and a user's codec", Group, direct) {
  conformance::check_codecs<Group>();
}

}  // namespace exchange_unified_bus_threads_test
