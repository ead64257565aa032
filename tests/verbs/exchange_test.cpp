// SPDX-License-Identifier: MIT
// ctest: timeout=400
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/transport/any_transport.hpp>

#include "conformance/exchange_suite.hpp"
#include "verbs/support.hpp"

namespace {
using peerbus::codec::bf16;
using peerbus::codec::int8_per_token;
using verbs_test::any_plain;
using any_striped = test::any_over<peerbus::any_transport, verbs_test::striped>;
}  // namespace

TEST_CASE("int8_per_token: dispatch and combine, all shapes") {
  for (const std::size_t n : {1U, 2U, 3U, 4U, 5U, 8U})
    conformance::check_shapes<any_plain, int8_per_token>(n);
}

TEST_CASE("bf16: dispatch and combine, all shapes") {
  for (const std::size_t n : {1U, 3U}) conformance::check_shapes<any_plain, bf16>(n);
}

TEST_CASE("rows as long as models have them") {
  conformance::check_long_rows<any_plain, bf16>(3);
  conformance::check_long_rows<any_striped, int8_per_token>(4);
}

TEST_CASE("small queues, several of them") {
  conformance::check_exchange<any_striped, int8_per_token>({16, 256, 4, 24, oracle::routes::zipf},
                                                           4);
}

TEST_CASE("a DeepEP-size dispatch and combine") {
  // Hidden 7168, top-8 of 256 experts, on 8 ranks; fewer tokens than the 128 of that library's low
  // latency mode, as the guest's processors are emulated.
  conformance::check_exchange<any_plain, int8_per_token>(
      {256, 7168, 8, 16, oracle::routes::uniform, conformance::counts::full}, 8, 1);
}

TEST_CASE("the same input gives the same bytes, every time") {
  conformance::check_repeatable<any_plain, int8_per_token>(3);
}
