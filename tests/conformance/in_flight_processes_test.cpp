// SPDX-License-Identifier: MIT
// ctest: timeout=400
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/transport/any_direct_transport.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "conformance/in_flight_suite.hpp"
#include "support/indirect.hpp"
#include "support/ranks.hpp"

namespace in_flight_processes_test {

namespace {

using peerbus::codec::bf16;
using peerbus::moe::outputs_at;
using unified_bus = test::processes_over<peerbus::unified_bus>;
using indirect = test::processes_over<test::indirect<peerbus::unified_bus>>;
using direct = test::any_over<peerbus::any_direct_transport, unified_bus>;
using staged = test::any_over<peerbus::any_transport, indirect>;

}  // namespace

TEST_CASE_TEMPLATE("batches in flight, in orders that somebody would choose", Group, direct,
                   staged) {
  for (const std::size_t n : test::sizes_for<Group>({2, 4, 8}))
    conformance::check_chosen_orders<Group, bf16>(n);
}

TEST_CASE_TEMPLATE("batches in flight, in orders that nobody would choose", Group, direct, staged) {
  for (const std::size_t n : {2U, 3U, 4U}) conformance::check_random_orders<Group, bf16>(n, 300, 2);
  conformance::check_random_orders<Group, bf16>(8, 150, 1);
}

TEST_CASE("the same with outputs at home") {
  conformance::check_random_orders<direct, bf16>(4, 300, 2, outputs_at::home);
}

}  // namespace in_flight_processes_test
