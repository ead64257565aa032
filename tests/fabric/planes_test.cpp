// SPDX-License-Identifier: MIT
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/core/rank.hpp>
#include <peerbus/transport/fabric.hpp>

#include "conformance/planes_suite.hpp"
#include "fabric/support.hpp"

namespace planes_test {

using peerbus::fabric;
using peerbus::rank_id;

TEST_CASE("the semantics of windows, among two and three hosts") {
  for (const std::size_t n : {1U, 3U, 5U}) conformance::check_windows_of_planes<fabric>(n);
}

TEST_CASE("dispatch and combine, near rows by stores and far ones by TCP") {
  for (const std::size_t n : {2U, 4U, 5U}) conformance::check_rows_of_planes<fabric>(n);
}

TEST_CASE("a signal of either plane wakes a process that sleeps") {
  conformance::check_sleeper_of_planes<fabric>();
}

TEST_CASE("a child that a rank forks leaves the planes of the rank alone") {
  conformance::check_fork_in_planes<fabric>();
}

TEST_CASE("a rank killed ends the waits of near and far ranks") {
  for (const std::size_t victim : {0U, 3U})
    conformance::check_death_in_planes<fabric>(rank_id{victim});
}

}  // namespace planes_test
