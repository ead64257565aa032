// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <doctest/doctest.h>

#include "deep_ep/elastic_suite.hpp"
#include "deep_ep/expanded_suite.hpp"
#include "support/groups.hpp"

namespace expanded_indirect_test {

TEST_CASE("the expanded form without peer memory") { expanded::run_all<test::staged_threads>(); }
TEST_CASE("engram, pp and agrs, without peer memory") { elastic::run_all<test::staged_threads>(); }

}  // namespace expanded_indirect_test
