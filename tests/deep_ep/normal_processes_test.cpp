// SPDX-License-Identifier: MIT
// ctest: timeout=400
#include <cstddef>

#include <doctest/doctest.h>

#include "deep_ep/normal_refusals_suite.hpp"
#include "deep_ep/normal_sequences.hpp"
#include "deep_ep/normal_suite.hpp"
#include "support/groups.hpp"

namespace normal_processes_test {

namespace {
using group = test::direct_processes;
}  // namespace

TEST_CASE("deep_ep normal: every form of call") {
  for (const std::size_t n : test::sizes_for<group>({1, 2, 5, 8})) normal::check_forms<group>(n);
}

TEST_CASE("deep_ep normal: sizes and routings on one buffer") {
  for (const std::size_t n : test::sizes_for<group>({2, 3, 7})) normal::check_models<group>(n);
}

TEST_CASE("deep_ep normal: 1 to 32 slots") { normal::check_top_k<group>(4); }

TEST_CASE("deep_ep normal: constants, as DeepEP's own tests") {
  normal::check_constants<group>(4, 64, 512);
}

TEST_CASE("deep_ep normal: many tokens") { normal::check_large<group>(2, 600, 896); }

TEST_CASE("deep_ep normal: calls in any order") {
  for (const std::size_t n : test::sizes_for<group>({3, 6})) normal::check_any_order<group>(n, 60);
}

TEST_CASE("deep_ep normal: order, events, several buffers, repeats") {
  normal::check_backward<group>(3);
  normal::check_in_flight<group>(4);
  normal::check_events<group>(3);
  normal::check_growth<group>(4);
  normal::check_captured_shapes<group>(4);
  normal::check_two_buffers<group>(3);
  normal::check_repeats<group>(2, 300);
}

TEST_CASE("deep_ep normal: refusals") {
  normal::check_refused_dispatches<group>();
  normal::check_refused_combines<group>();
  normal::check_refused_everywhere<group>(4);
  normal::check_weights_of_some<group>(4);
  normal::check_differing_handles<group>(4);
}

}  // namespace normal_processes_test
