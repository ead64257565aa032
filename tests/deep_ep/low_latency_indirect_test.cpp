// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <cstddef>

#include <doctest/doctest.h>

#include "deep_ep/low_latency_cases.hpp"
#include "support/groups.hpp"

namespace low_latency_indirect_test {

// A transport without peer memory, which does everything as late as it may.

namespace {
using group = test::staged_threads;
}

PEERBUS_TEST_LOW_LATENCY(group)

TEST_CASE("low latency: outputs in LogFMT") {
  for (const std::size_t ranks : {1U, 2U, 5U}) low_latency_cases::check_logfmt<group>(ranks);
}

}  // namespace low_latency_indirect_test
