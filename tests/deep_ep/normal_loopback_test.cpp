// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <cstddef>

#include <doctest/doctest.h>

#include "deep_ep/normal_suite.hpp"
#include "support/groups.hpp"

namespace normal_loopback_test {

namespace {
using group = test::direct_threads;
}  // namespace

TEST_CASE("deep_ep normal: every form of call") {
  for (const std::size_t n : test::sizes_for<group>({1, 2, 3, 8})) normal::check_forms<group>(n);
}

TEST_CASE("deep_ep normal: sizes and routings on one buffer") {
  for (const std::size_t n : test::sizes_for<group>({1, 2, 4, 5, 6, 7}))
    normal::check_models<group>(n);
}

TEST_CASE("deep_ep normal: 1 to 32 slots") { normal::check_top_k<group>(3); }

TEST_CASE("deep_ep normal: constants, as DeepEP's own tests") {
  for (const std::size_t n : {2U, 4U}) normal::check_constants<group>(n, 32, 256);
}

TEST_CASE("deep_ep normal: many tokens") { normal::check_large<group>(2, 520, 896); }

}  // namespace normal_loopback_test
