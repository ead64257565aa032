// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/simulated.hpp>

#include "conformance/exchange_suite.hpp"
#include "conformance/in_flight_suite.hpp"
#include "conformance/lanes_suite.hpp"
#include "conformance/layout_suite.hpp"
#include "simulated/support.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace exchange_test {

namespace {
using simulated_ranks = simulated_test::simulated_over<peerbus::simulated, 3>;
using ranks_of_nodes = simulated_test::simulated_over<peerbus::simulated, 3, 2>;
using any_ranks = test::any_over<peerbus::any_transport, simulated_ranks, ranks_of_nodes>;
using peerbus::codec::int8_per_token;
using peerbus::moe::outputs_at;
}  // namespace

TEST_CASE("dispatch and combine, all shapes, in many orders") {
  for (const std::size_t n : {1U, 2U, 5U, 8U})
    conformance::check_shapes<any_ranks, int8_per_token>(n);
}

TEST_CASE("all layouts, in many orders") {
  for (const std::size_t n : {3U, 5U}) conformance::check_layouts<any_ranks, int8_per_token>(n, 1);
}

TEST_CASE("all layouts among many ranks") {
  const int worst_status = any_ranks::run(24, [](auto& comm) {
    conformance::run_layouts<int8_per_token>(
        comm, {96, 64, 8, 2, oracle::routes::zipf, conformance::counts::uneven, {12}}, 1);
  });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE("several lanes move the same bytes as one, in many orders", Layout,
                   peerbus::moe::compact, peerbus::moe::slots) {
  for (const std::size_t n : {1U, 3U})
    conformance::check_lanes<simulated_ranks>(n, 3, Layout{}, peerbus::moe::outputs_at::expert, 4);
}

TEST_CASE("batches in flight, in halves of chosen and drawn orders, in many orders") {
  for (const std::size_t n : {1U, 2U, 4U})
    conformance::check_chosen_orders<any_ranks, int8_per_token>(n);
  for (const std::size_t n : {2U, 3U})
    conformance::check_random_orders<any_ranks, int8_per_token>(n, 150, 2);
  conformance::check_random_orders<any_ranks, int8_per_token>(4, 150, 1, outputs_at::home);
}

TEST_CASE_TEMPLATE("batches in flight in slots, in many orders", Layout, peerbus::moe::slots,
                   peerbus::moe::expert_slots) {
  conformance::check_random_orders<any_ranks, int8_per_token, Layout>(3, 150, 2);
}

}  // namespace exchange_test
