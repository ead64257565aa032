// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <doctest/doctest.h>

#include <peerbus/transport/loopback.hpp>

#include "deep_ep/expanded_suite.hpp"
#include "support/indirect.hpp"
#include "support/ranks.hpp"

TEST_CASE("the expanded form without peer memory") {
  expanded::run_all<test::threads_over<test::indirect<peerbus::loopback>>>();
}
