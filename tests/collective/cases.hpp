// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include "collective/fusions.hpp"
#include "collective/halves.hpp"
#include "collective/messages.hpp"
#include "collective/parts.hpp"
#include "collective/suite.hpp"

/// Defines the test cases of collective operations that all kinds of groups pass, for these kinds.
#define PEERBUS_TEST_COLLECTIVES(...)                                                   \
  TEST_CASE_TEMPLATE("all operations, in many slices", Group, __VA_ARGS__) {            \
    collective_suite::on_teams<Group>(collective_suite::check_small,                    \
                                      collective_suite::small_scratch);                 \
  }                                                                                     \
  TEST_CASE_TEMPLATE("all operations in halves", Group, __VA_ARGS__) {                  \
    collective_suite::on_teams<Group>(collective_suite::check_halves,                   \
                                      collective_suite::small_scratch);                 \
  }                                                                                     \
  TEST_CASE_TEMPLATE("fused operations", Group, __VA_ARGS__) {                          \
    collective_suite::on_teams<Group>(collective_suite::check_fusions,                  \
                                      collective_suite::small_scratch);                 \
  }                                                                                     \
  TEST_CASE_TEMPLATE("messages", Group, __VA_ARGS__) {                                  \
    collective_suite::on_channels_of_all_sizes<Group>(collective_suite::check_messages, \
                                                      collective_suite::small_slots);   \
  }                                                                                     \
  TEST_CASE_TEMPLATE("parts of different sizes", Group, __VA_ARGS__) {                  \
    collective_suite::on_teams<Group>(collective_suite::check_parts,                    \
                                      collective_suite::small_scratch);                 \
  }
