// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <doctest/doctest.h>

#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "conformance/exchange_suite.hpp"
#include "support/ranks.hpp"

namespace exchange_unified_bus_threads_test {

namespace {

using unified_bus = test::threads_over<peerbus::unified_bus>;
using threads = test::any_over<peerbus::any_transport, unified_bus>;

}  // namespace

PEERBUS_TEST_EXCHANGES(threads)

TEST_CASE("codec archetype and a user's codec") { conformance::check_codecs<threads>(); }

}  // namespace exchange_unified_bus_threads_test
