// SPDX-License-Identifier: MIT
// ctest: timeout=120
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/split.hpp>
#include <peerbus/collective.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/ranks.hpp"

namespace split_test {

namespace {

namespace coll = peerbus::collective;
using peerbus::rank_id;
using communicator = peerbus::communicator<peerbus::unified_bus>;

/// Splits by the remainder of the rank by 3, the highest rank first, and works in both groups.
void check_split(peerbus::bootstrap& boot) {
  const std::size_t n = boot.size();
  const std::size_t me = boot.rank().index();
  const auto group = peerbus::split(boot, me % 3, n - me);
  std::vector<std::uint64_t> expected;
  for (std::size_t r = n; r-- > 0;)
    if (r % 3 == me % 3) expected.push_back(r);
  test::expect_equal(group->size(), expected.size(), "members");

  communicator whole{peerbus::unified_bus{boot}};
  communicator part{peerbus::unified_bus{*group}};
  coll::team of_whole{whole};
  coll::team of_part{part};
  for (int round = 0; round < 20; ++round) {
    std::vector<std::uint64_t> mine{me};
    std::vector<std::uint64_t> members(expected.size());
    coll::all_gather(of_part, mine, members);
    test::expect(members == expected, "the ranks of the part in the order of keys");
    coll::all_reduce(of_whole, mine, coll::sum{});
    test::expect_equal(mine[0], n * (n - 1) / 2, "sum over the whole");
  }
}

}  // namespace

TEST_CASE("groups by color, at the same time as the whole") {
  for (const std::size_t n : {1U, 2U, 5U, 8U}) {
    CHECK(test::processes_over<peerbus::unified_bus>::start(n, check_split) == 0);
    CHECK(test::threads_over<peerbus::unified_bus>::start(n, check_split) == 0);
  }
}

TEST_CASE("equal keys leave the order of ranks") {
  const int worst_status =
      test::threads_over<peerbus::unified_bus>::start(4, [](peerbus::bootstrap& boot) {
        const auto all = peerbus::split(boot, 7);
        test::expect(all->rank() == boot.rank() && all->size() == 4, "the same numbers");
      });
  CHECK(worst_status == 0);
}

}  // namespace split_test
