// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <doctest/doctest.h>

#include "moe/layout_refusals.hpp"
#include "support/groups.hpp"

namespace refusals_processes_test {

PEERBUS_TEST_REFUSALS(test::direct_processes)

}  // namespace refusals_processes_test
