// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <doctest/doctest.h>

#include "deep_ep/expanded_suite.hpp"
#include "support/groups.hpp"

namespace expanded_processes_test {

TEST_CASE("the expanded form, processes") { expanded::run_all<test::direct_processes>(); }

}  // namespace expanded_processes_test
