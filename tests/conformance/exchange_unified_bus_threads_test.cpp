// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/codec/archetype.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/transport/any_direct_transport.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "conformance/exchange_suite.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace exchange_unified_bus_threads_test {

namespace {

using peerbus::codec::int8_per_token;
using unified_bus = test::threads_over<peerbus::unified_bus>;
using direct = test::any_over<peerbus::any_direct_transport, unified_bus>;

}  // namespace

#define PEERBUS_TEST_GROUPS direct

TEST_CASE_TEMPLATE("bf16: dispatch and combine, all shapes", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : test::sizes_for<Group>())
    conformance::check_shapes<Group, peerbus::codec::bf16>(n);
}

TEST_CASE_TEMPLATE("int8_per_token: dispatch and combine, all shapes", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : test::sizes_for<Group>())
    conformance::check_shapes<Group, int8_per_token>(n);
}

TEST_CASE_TEMPLATE("codec archetype and a user's codec", Group, PEERBUS_TEST_GROUPS) {
  using oracle::routes;
  for (const std::size_t n : {1U, 3U, 4U}) {
    const conformance::exchange_case one{7, 48, 3, 9, routes::zipf};
    conformance::check_exchange<Group, peerbus::codec::archetype>(one, n);
    conformance::check_exchange<Group, oracle::user_codec>(one, n);
  }
}

TEST_CASE_TEMPLATE("rows as long as models have them", Group, PEERBUS_TEST_GROUPS) {
  conformance::check_long_rows<Group, peerbus::codec::bf16>(3);
  conformance::check_long_rows<Group, int8_per_token>(4);
}

TEST_CASE_TEMPLATE("several exchanges on one communicator, interleaved", Group,
                   PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {1U, 2U, 5U}) conformance::check_interleaved<Group>(n);
}

TEST_CASE_TEMPLATE("the same input gives the same bytes, every time", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {2U, 5U}) conformance::check_repeatable<Group, int8_per_token>(n);
  conformance::check_repeatable<Group, peerbus::codec::bf16>(3);
}

#undef PEERBUS_TEST_GROUPS

}  // namespace exchange_unified_bus_threads_test
