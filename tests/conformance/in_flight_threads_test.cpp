// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/transport/loopback.hpp>

#include "conformance/in_flight_suite.hpp"
#include "support/indirect.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"

namespace in_flight_threads_test {

namespace {

using peerbus::codec::int8_per_token;
using peerbus::moe::outputs_at;
using direct = test::threads_over<peerbus::loopback>;
using staged = test::threads_over<test::indirect<peerbus::loopback>>;

}  // namespace

TEST_CASE_TEMPLATE("batches in flight, in orders that somebody would choose", Group, direct,
                   staged) {
  for (const std::size_t n : test::sizes_for<Group>({1, 2, 3, 4, 8}))
    conformance::check_chosen_orders<Group, int8_per_token>(n);
}

TEST_CASE_TEMPLATE("batches in flight, in orders that nobody would choose", Group, direct, staged) {
  for (const std::size_t n : {1U, 2U, 3U, 4U})
    conformance::check_random_orders<Group, int8_per_token>(n, 300, 4);
  conformance::check_random_orders<Group, int8_per_token>(8, 150, 1);
}

TEST_CASE_TEMPLATE("batches in flight in slots", Layout, peerbus::moe::slots,
                   peerbus::moe::expert_slots) {
  for (const std::size_t n : {2U, 3U}) {
    conformance::check_random_orders<direct, int8_per_token, Layout>(n, 200, 3);
    conformance::check_random_orders<staged, int8_per_token, Layout>(n, 200, 3);
  }
  conformance::check_random_orders<direct, int8_per_token, Layout>(3, 200, 2, outputs_at::home);
}

TEST_CASE("the same with outputs at home") {
  for (const std::size_t n : {1U, 3U, 4U})
    conformance::check_random_orders<direct, int8_per_token>(n, 300, 2, outputs_at::home);
}

}  // namespace in_flight_threads_test
