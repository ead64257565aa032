// SPDX-License-Identifier: MIT
// ctest: timeout=400
#include <doctest/doctest.h>

#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/fault.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "conformance/exchange_suite.hpp"
#include "support/indirect.hpp"
#include "support/ranks.hpp"

namespace exchange_processes_test {

namespace {

using unified_bus = test::processes_over<peerbus::unified_bus>;
using indirect = test::processes_over<test::indirect<peerbus::unified_bus>>;
using faulty = test::processes_over<peerbus::fault<peerbus::unified_bus>>;
using processes = test::any_over<peerbus::any_transport, unified_bus, faulty, indirect>;

}  // namespace

PEERBUS_TEST_EXCHANGES(processes)

TEST_CASE("codec archetype and a user's codec") { conformance::check_codecs<processes>(); }

}  // namespace exchange_processes_test
