// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <cstddef>
#include <cstdint>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/fabric.hpp>

#include "conformance/exchange_suite.hpp"
#include "conformance/layout_suite.hpp"
#include "fabric/support.hpp"
#include "support/process.hpp"
#include "support/repetitions.hpp"
#include "support/round.hpp"

namespace exchange_test {

namespace {
using fabric_test::both;
using fabric_test::connected;
using fabric_test::plain;
using peerbus::codec::bf16;
using peerbus::codec::int8_per_token;
}  // namespace

TEST_CASE("int8_per_token: dispatch and combine, all shapes") {
  for (const std::size_t n : {1U, 2U, 3U, 5U}) conformance::check_shapes<plain, int8_per_token>(n);
}

TEST_CASE("rows as long as models have them") { conformance::check_long_rows<both, bf16>(3); }

TEST_CASE("a short queue, and signals by the order of a connection") {
  conformance::check_exchange<connected, int8_per_token>({16, 256, 4, 24, oracle::routes::zipf}, 4);
}

TEST_CASE("a DeepEP-size dispatch and combine") {
  conformance::check_exchange<plain, int8_per_token>(
      {256, 7168, 8, 16, oracle::routes::uniform, conformance::counts::full}, 8, 1);
}

TEST_CASE("the same input gives the same bytes, every time") {
  conformance::check_repeatable<plain, int8_per_token>(3);
}

TEST_CASE("every layout, outputs at either end, attachments") {
  for (const std::size_t n : {1U, 2U, 3U, 4U})
    conformance::check_layouts<plain, int8_per_token>(n, 1);
}

TEST_CASE("many groups leave nothing behind") {
  const int status = peerbus::run_local(3, [](peerbus::bootstrap& boot) {
    test::expect_nothing_left(test::repetitions(100), [&](std::uint64_t) {
      peerbus::communicator comm{peerbus::any_transport{peerbus::fabric{boot}}};
      test::do_a_round(comm);
    });
  });
  CHECK(status == 0);
}

}  // namespace exchange_test
