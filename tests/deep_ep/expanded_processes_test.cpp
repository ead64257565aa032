// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <doctest/doctest.h>

#include "deep_ep/elastic_suite.hpp"
#include "deep_ep/expanded_suite.hpp"
#include "support/groups.hpp"

namespace expanded_processes_test {

TEST_CASE("the expanded form, processes") { expanded::run_all<test::direct_processes>(); }
TEST_CASE("engram, pp and agrs, processes") { elastic::run_all<test::direct_processes>(); }

}  // namespace expanded_processes_test
