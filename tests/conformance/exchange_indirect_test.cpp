// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <doctest/doctest.h>

#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>

#include "conformance/exchange_suite.hpp"
#include "support/indirect.hpp"
#include "support/ranks.hpp"

namespace exchange_indirect_test {

namespace {

using indirect_threads = test::threads_over<test::indirect<peerbus::loopback>>;

}  // namespace

PEERBUS_TEST_EXCHANGES(indirect_threads)

TEST_CASE("codec archetype and a user's codec") {
  conformance::check_codecs<test::any_over<peerbus::any_transport, indirect_threads>>();
}

}  // namespace exchange_indirect_test
