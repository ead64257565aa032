// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include "deep_ep/normal_sequences.hpp"

#include <cstddef>

#include <doctest/doctest.h>

#include "support/groups.hpp"

namespace normal_sequences_test {

namespace {
using group = test::direct_threads;
}  // namespace

TEST_CASE("deep_ep normal: calls in any order") {
  for (const std::size_t n : test::sizes_for<group>({1, 2, 3, 5, 8}))
    normal::check_any_order<group>(n, 60);
}

TEST_CASE("deep_ep normal: forward and backward") {
  for (const std::size_t n : {1U, 2U, 4U}) normal::check_backward<group>(n);
}

TEST_CASE("deep_ep normal: three batches in flight") {
  for (const std::size_t n : test::sizes_for<group>({2, 3, 7})) normal::check_in_flight<group>(n);
}

TEST_CASE("deep_ep normal: events") {
  for (const std::size_t n : {1U, 2U, 4U}) normal::check_events<group>(n);
}

TEST_CASE("deep_ep normal: more tokens of a rank than before") {
  for (const std::size_t n : {1U, 2U, 3U, 4U}) normal::check_growth<group>(n);
}

TEST_CASE("deep_ep normal: shapes that graphs capture") {
  for (const std::size_t n : {1U, 3U, 4U}) normal::check_captured_shapes<group>(n);
}

TEST_CASE("deep_ep normal: two buffers on one communicator") {
  for (const std::size_t n : test::sizes_for<group>({2, 6})) normal::check_two_buffers<group>(n);
}

TEST_CASE("deep_ep normal: repeats") {
  normal::check_repeats<group>(2, 2000);
  normal::check_repeats<group>(5, 100);
}

}  // namespace normal_sequences_test
