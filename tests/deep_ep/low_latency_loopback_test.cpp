// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <cstddef>

#include <doctest/doctest.h>

#include "deep_ep/low_latency_cases.hpp"
#include "support/groups.hpp"

namespace low_latency_loopback_test {

// Ranks that are threads with each other's memory.

namespace {
using group = test::direct_threads;
}

TEST_CASE("low latency: every format, contents, counts and routing") {
  for (std::size_t ranks = 1; ranks <= 8; ++ranks) {
    low_latency_suite::check_worlds<group>(low_latency_cases::various(ranks), ranks);
    low_latency_suite::check_worlds<group>(low_latency_cases::various(ranks), 50 + ranks, true);
  }
}

TEST_CASE("low latency: as DeepEP's own test looks at it") {
  for (const std::size_t ranks : test::sizes_for<group>({1, 2, 3, 8}))
    low_latency_cases::check_as_deepep_does<group>(ranks);
}

TEST_CASE("low latency: other shapes in between, cleaned or not") {
  for (const std::size_t ranks : {1U, 2U, 5U})
    low_latency_cases::check_changing_shapes<group>(ranks);
}

TEST_CASE("low latency: batches in flight") {
  for (const std::size_t ranks : test::sizes_for<group>({1, 2, 3, 7}))
    for (const std::size_t in_flight : {1U, 2U, 3U, 5U})
      for (const bool zero_copy : {false, true})
        low_latency_cases::check_in_flight<group>(ranks, in_flight, zero_copy);
}

TEST_CASE("low latency: repeats, two buffers, dispatches without a combine") {
  for (const std::size_t ranks : test::sizes_for<group>({1, 2, 6}))
    low_latency_cases::check_repeats<group>(ranks);
}

TEST_CASE("low latency: outputs in LogFMT") {
  for (const std::size_t ranks : {1U, 2U, 5U}) low_latency_cases::check_logfmt<group>(ranks);
}

TEST_CASE("low latency: a handle is combined again and again") {
  for (const std::size_t ranks : {1U, 2U, 5U})
    low_latency_cases::check_combines_again<group>(ranks);
}

TEST_CASE("low latency: masked ranks") {
  for (const std::size_t ranks : {1U, 2U, 5U}) low_latency_cases::check_masks<group>(ranks);
}

TEST_CASE("low latency: beside normal mode") {
  for (const std::size_t ranks : {1U, 3U}) low_latency_cases::check_beside_normal<group>(ranks);
}

}  // namespace low_latency_loopback_test
