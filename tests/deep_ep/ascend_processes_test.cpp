// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <doctest/doctest.h>

#include "deep_ep/ascend_suite.hpp"
#include "support/groups.hpp"

namespace ascend_processes_test {

TEST_CASE("the Ascend layout, processes") { ascend::run_all<test::direct_processes>(); }

}  // namespace ascend_processes_test
