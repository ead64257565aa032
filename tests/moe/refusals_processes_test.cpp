// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/moe/config.hpp>
#include <peerbus/moe/layout.hpp>

#include "moe/layout_refusals.hpp"
#include "moe/refusals.hpp"
#include "support/groups.hpp"

namespace refusals_processes_test {

#define PEERBUS_TEST_GROUPS test::direct_processes

TEST_CASE_TEMPLATE("a bad dispatch is refused on all ranks, and nothing is written", Group,
                   PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {1U, 2U, 3U, 5U}) refusals::check_bad_dispatch<Group>(n);
}

TEST_CASE_TEMPLATE("bad input on several ranks", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {2U, 4U}) refusals::check_bad_on_several<Group>(n);
}

TEST_CASE_TEMPLATE("a bad combine is refused on all ranks", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {1U, 2U, 3U, 5U}) {
    refusals::check_bad_combine<Group>(n);
    refusals::check_bad_combine<Group, peerbus::moe::rank_major>(n, peerbus::moe::outputs_at::home);
  }
}

TEST_CASE_TEMPLATE("impossible configurations", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {1U, 2U, 3U}) refusals::check_bad_configurations<Group>(n);
}

TEST_CASE_TEMPLATE("impossible layouts", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {1U, 2U, 3U}) refusals::check_bad_layouts<Group>(n);
}

TEST_CASE_TEMPLATE("attachments that do not fit", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {1U, 2U, 3U}) {
    refusals::check_bad_attachments<Group, peerbus::moe::compact>(n);
    refusals::check_bad_attachments<Group, peerbus::moe::rank_major>(n);
  }
}

TEST_CASE_TEMPLATE("ranks that differ in their configuration", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {2U, 3U}) {
    refusals::check_mismatches<Group>(n);
    refusals::check_different_codecs<Group>(n);
  }
}

TEST_CASE_TEMPLATE("a rank that does not come", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {2U, 3U}) {
    refusals::check_time_out<Group>(n);
    refusals::check_time_out_in_combine<Group>(n);
  }
}

#undef PEERBUS_TEST_GROUPS

}  // namespace refusals_processes_test
