// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <cstddef>

#include <doctest/doctest.h>

#include "conformance/lanes_suite.hpp"
#include "verbs/support.hpp"

TEST_CASE("several lanes of each process move the same bytes as one") {
  for (const std::size_t ranks : {1U, 2U, 3U})
    conformance::check_lanes_all_layouts<verbs_test::any_plain>(ranks, 2, 4);
}
