// SPDX-License-Identifier: MIT
// ctest: timeout=400
#include <cstddef>

#include <doctest/doctest.h>

#include "deep_ep/low_latency_cases.hpp"
#include "verbs/support.hpp"

TEST_CASE("low latency: every format, contents, counts and routing") {
  for (const std::size_t ranks : {1U, 2U, 3U})
    low_latency_suite::check_worlds<verbs_test::any_plain>(low_latency_cases::various(ranks),
                                                           ranks);
}

TEST_CASE("low latency: batches in flight") {
  low_latency_cases::check_in_flight<verbs_test::any_plain>(3, 3, false);
}
