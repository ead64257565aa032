// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <cstddef>

#include <doctest/doctest.h>

#include "deep_ep/normal_refusals_suite.hpp"
#include "support/groups.hpp"

namespace normal_refusals_test {

namespace {
using group = test::direct_threads;
}  // namespace

TEST_CASE("deep_ep normal: arguments of dispatch") { normal::check_refused_dispatches<group>(); }

TEST_CASE("deep_ep normal: arguments of combine") { normal::check_refused_combines<group>(); }

TEST_CASE("deep_ep normal: arguments that differ between ranks") {
  for (const std::size_t n : {2U, 5U}) normal::check_differing_ranks<group>(n);
  for (const std::size_t n : {2U, 5U}) normal::check_differing_handles<group>(n);
}

TEST_CASE("deep_ep normal: refused on all ranks") {
  for (const std::size_t n : {1U, 2U, 5U}) normal::check_refused_everywhere<group>(n);
}

TEST_CASE("deep_ep normal: weights of some ranks in a combine") {
  for (const std::size_t n : {2U, 5U}) normal::check_weights_of_some<group>(n);
}

TEST_CASE("deep_ep normal: limits") {
  normal::check_limits<group>(2);
  normal::check_too_many_ranks<group>();
}

TEST_CASE("deep_ep normal: deadlines") { normal::check_deadlines<group>(); }

}  // namespace normal_refusals_test
