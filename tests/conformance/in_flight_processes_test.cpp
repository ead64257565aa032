// SPDX-License-Identifier: MIT
// ctest: timeout=400
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
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
using processes = test::any_over<peerbus::any_transport, unified_bus, indirect>;

}  // namespace

TEST_CASE("batches in flight, in orders that somebody would choose") {
  for (const std::size_t n : test::sizes_for<processes>({2, 4, 8}))
    conformance::check_chosen_orders<processes, bf16>(n);
}

TEST_CASE("batches in flight, in orders that nobody would choose") {
  for (const std::size_t n : {2U, 3U, 4U})
    conformance::check_random_orders<processes, bf16>(n, 300, 2);
  conformance::check_random_orders<processes, bf16>(8, 150, 1);
}

TEST_CASE("the same with outputs at home") {
  conformance::check_random_orders<test::any_over<peerbus::any_transport, unified_bus>, bf16>(
      4, 300, 2, outputs_at::home);
}

}  // namespace in_flight_processes_test
