// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/team.hpp>

#include "collective/fusions.hpp"
#include "collective/messages.hpp"
#include "collective/parts.hpp"
#include "collective/suite.hpp"
#include "verbs/support.hpp"

namespace collectives_test {

namespace {

namespace suite = collective_suite;

/// A few sizes of each operation, in one slice and in many. An emulated processor is slow.
void check_some(suite::team& on) {
  for (const std::size_t count : {0U, 17U, 257U}) {
    suite::check_copies<float>(on, count, 500 + count);
    suite::check_reductions<peerbus::bf16>(on, count, 600 + count, peerbus::collective::sum{});
  }
  suite::check_parts_of<float>(on, 40, 701, true);
  suite::check_parts_of<float>(on, 40, 702, false);
  suite::check_coded<peerbus::codec::int8_per_token>(on, 21, 24, 703);
  suite::check_add<peerbus::bf16>(on, 700, 704);
}

}  // namespace

TEST_CASE("collective operations and messages") {
  for (const std::size_t ranks : {1U, 2U, 3U}) {
    suite::on_team<verbs_test::any_plain>(ranks, check_some, suite::small_scratch);
    suite::on_channels<verbs_test::any_plain>(
        ranks, [](suite::channels& on) { suite::check_batch(on, 0, 2, 1); }, suite::small_slots);
  }
}

}  // namespace collectives_test
