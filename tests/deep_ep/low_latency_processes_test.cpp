// SPDX-License-Identifier: MIT
// ctest: timeout=400
#include <doctest/doctest.h>

#include "deep_ep/low_latency_cases.hpp"
#include "support/groups.hpp"

namespace low_latency_processes_test {

// Ranks that are processes.

namespace {
using group = test::direct_processes;
}

PEERBUS_TEST_LOW_LATENCY(group)

}  // namespace low_latency_processes_test
