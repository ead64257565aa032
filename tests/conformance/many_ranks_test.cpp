// SPDX-License-Identifier: MIT
// ctest: many unsanitized serial timeout=600
#include <cstdint>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "conformance/exchange_suite.hpp"
#include "conformance/layout_suite.hpp"
#include "conformance/window_suite.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace many_ranks_test {

// Far more ranks than cores: everything is right, and every operation ends.

namespace {
using group = test::processes_over<peerbus::unified_bus>;
}  // namespace

TEST_CASE("64 processes: barriers and puts") { conformance::check_barrier<group>(64, 20); }

TEST_CASE("64 processes: dispatch and combine") {
  using conformance::counts;
  using oracle::routes;
  using peerbus::codec::int8_per_token;
  conformance::check_exchange<group, int8_per_token>({256, 64, 8, 4, routes::zipf}, 64, 6);
  conformance::check_exchange<group, int8_per_token>({100, 16, 2, 3, routes::one_expert}, 64, 4);
  conformance::check_exchange<group, int8_per_token>({5, 16, 2, 3, routes::holes}, 64, 4);
}

TEST_CASE("64 processes: no tokens anywhere") {
  conformance::check_exchange<group, peerbus::codec::int8_per_token>(
      {64, 16, 2, 4, oracle::routes::uniform, conformance::counts::none}, 64, 30);
}

TEST_CASE("64 processes: every layout") {
  const int worst_status = group::run(64, [](auto& comm) {
    using peerbus::codec::int8_per_token;
    conformance::run_layouts<int8_per_token>(
        comm, {256, 64, 8, 4, oracle::routes::zipf, conformance::counts::uneven, {12}}, 2);
  });
  CHECK(worst_status == 0);
}

}  // namespace many_ranks_test
