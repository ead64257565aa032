// SPDX-License-Identifier: MIT
// ctest: timeout=400
#include <cstddef>

#include <doctest/doctest.h>

#include "deep_ep/expanded_suite.hpp"
#include "deep_ep/normal_sequences.hpp"
#include "deep_ep/normal_suite.hpp"
#include "verbs/support.hpp"

TEST_CASE("normal: every form of call") {
  for (const std::size_t ranks : {1U, 3U}) normal::check_forms<verbs_test::any_plain>(ranks);
}

TEST_CASE("normal: one handle for several dispatches and combines") {
  normal::check_backward<verbs_test::any_plain>(3);
}

TEST_CASE("the expanded form") {
  expanded::run_forms<verbs_test::any_plain>(3, {3, 7, 128, 4}, expanded::pattern::zipf,
                                             expanded::batch::uneven);
}
