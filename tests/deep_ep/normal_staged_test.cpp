// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <cstddef>

#include <doctest/doctest.h>

#include "deep_ep/normal_refusals_suite.hpp"
#include "deep_ep/normal_sequences.hpp"
#include "deep_ep/normal_suite.hpp"
#include "support/groups.hpp"

namespace normal_staged_test {

namespace {
using group = test::staged_threads;
}  // namespace

TEST_CASE("deep_ep normal: every form of call") {
  for (const std::size_t n : test::sizes_for<group>({1, 2, 3, 8})) normal::check_forms<group>(n);
}

TEST_CASE("deep_ep normal: sizes and routings on one buffer") {
  for (const std::size_t n : test::sizes_for<group>({1, 4, 6})) normal::check_models<group>(n);
}

TEST_CASE("deep_ep normal: many tokens") { normal::check_large<group>(2, 520, 256); }

TEST_CASE("deep_ep normal: calls in any order") {
  for (const std::size_t n : {2U, 5U}) normal::check_any_order<group>(n, 60);
}

TEST_CASE("deep_ep normal: order, events, several buffers, repeats") {
  normal::check_backward<group>(4);
  normal::check_in_flight<group>(3);
  normal::check_events<group>(2);
  normal::check_two_buffers<group>(3);
  normal::check_repeats<group>(3, 300);
}

TEST_CASE("deep_ep normal: refusals") {
  normal::check_refused_dispatches<group>();
  normal::check_refused_combines<group>();
  normal::check_refused_everywhere<group>(3);
  normal::check_weights_of_some<group>(3);
}

}  // namespace normal_staged_test
