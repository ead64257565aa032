// SPDX-License-Identifier: MIT
// ctest: tsan waits
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/communicator/near_groups.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/loopback.hpp>

#include "support/ranks.hpp"

namespace near_groups_test {

namespace {

using peerbus::rank_id;
using peerbus::detail::near_groups;
using threads = test::threads_over<peerbus::loopback>;

/// Finds the groups, where ranks are near each other if `group_of` is the same of both.
template <class Communicator>
near_groups find_groups(Communicator& comm, const std::vector<std::uint32_t>& group_of) {
  return peerbus::detail::find_near_groups(
      comm, "groups", comm.default_deadline(),
      [&](rank_id peer) { return group_of[peer.index()] == group_of[comm.rank().index()]; });
}

std::vector<rank_id> ranks(std::initializer_list<std::size_t> numbers) {
  return {numbers.begin(), numbers.end()};
}

}  // namespace

TEST_CASE("groups of one size: each rank has a counterpart in each group") {
  CHECK(threads::run(4, [](auto& comm) {
          const near_groups found = find_groups(comm, {0, 1, 1, 0});
          const bool is_second = comm.rank() == rank_id{2} || comm.rank() == rank_id{3};
          test::expect(found.groups == std::vector{ranks({0, 3}), ranks({1, 2})}, "the groups");
          test::expect_equal(found.count(), std::size_t{2}, "count");
          test::expect_equal(found.ranks_per_group(), std::size_t{2}, "ranks_per_group");
          test::expect_equal(found.own_place, std::size_t{is_second}, "own_place");
          test::expect(found.near()[found.own_place] == comm.rank(), "this rank at its place");
          test::expect(found.counterpart(0) == rank_id{is_second ? 3U : 0U}, "of group 0");
          test::expect(found.counterpart(1) == rank_id{is_second ? 2U : 1U}, "of group 1");
          for (const rank_id rank : comm.ranks())
            test::expect_equal(found.is_counterpart(rank),
                               rank == found.counterpart(0) || rank == found.counterpart(1),
                               "is_counterpart");
          test::expect(found.near_counterpart(rank_id{2}) == found.near()[1],
                       "with rank 2's place");
          test::expect(found.column(found.own_place) ==
                           std::vector{found.counterpart(0), found.counterpart(1)},
                       "a column of counterparts");
        }) == 0);
}

TEST_CASE("groups of different sizes share the columns of the smallest") {
  CHECK(threads::run(6, [](auto& comm) {
          const near_groups found = find_groups(comm, {0, 1, 0, 1, 0, 0});
          test::expect(found.groups == std::vector{ranks({0, 2, 4, 5}), ranks({1, 3})},
                       "the groups");
          test::expect_equal(found.ranks_per_group(), std::size_t{0}, "ranks_per_group");
          test::expect_equal(found.columns(), std::size_t{2}, "columns");
          test::expect_equal(found.largest_column(), std::size_t{3}, "largest_column");
          test::expect(found.column(0) == ranks({0, 4, 1}), "column 0");
          test::expect(found.column(1) == ranks({2, 5, 3}), "column 1");
          test::expect(found.group_of_each() == std::vector<std::uint32_t>{0, 1, 0, 1, 0, 0},
                       "group_of_each");
        }) == 0);
}

TEST_CASE("without groups no group has ranks") {
  CHECK(near_groups{}.ranks_per_group() == 0);
  CHECK(near_groups{}.count() == 0);
}

}  // namespace near_groups_test
