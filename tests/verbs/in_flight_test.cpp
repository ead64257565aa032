// SPDX-License-Identifier: MIT
// ctest: timeout=400
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/moe/layout.hpp>

#include "conformance/in_flight_suite.hpp"
#include "verbs/support.hpp"

TEST_CASE("batches in flight, in orders that somebody would choose") {
  for (const std::size_t n : {2U, 4U})
    conformance::check_chosen_orders<verbs_test::any_plain, peerbus::codec::bf16>(n);
}

TEST_CASE("batches in flight, in orders that nobody would choose") {
  for (const std::size_t n : {2U, 3U})
    conformance::check_random_orders<verbs_test::any_plain, peerbus::codec::bf16>(n, 100, 1);
}

TEST_CASE("batches in flight in slots") {
  conformance::check_random_orders<verbs_test::any_plain, peerbus::codec::int8_per_token,
                                   peerbus::moe::expert_slots>(3, 100, 1);
}
