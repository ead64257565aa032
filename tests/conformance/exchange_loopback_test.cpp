// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <doctest/doctest.h>

#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>

#include "conformance/exchange_suite.hpp"
#include "support/ranks.hpp"

namespace exchange_loopback_test {

namespace {

using loopback_threads = test::threads_over<peerbus::loopback>;

}  // namespace

PEERBUS_TEST_EXCHANGES(loopback_threads)

TEST_CASE("codec archetype and a user's codec") {
  conformance::check_codecs<test::any_over<peerbus::any_transport, loopback_threads>>();
}

}  // namespace exchange_loopback_test
