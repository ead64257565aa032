// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/all_reduce.hpp>
#include <peerbus/collective/detail/way_trials.hpp>
#include <peerbus/collective/in_window.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "collective/algorithms.hpp"
#include "collective/cases.hpp"
#include "collective/fusions.hpp"
#include "collective/halves.hpp"
#include "collective/messages.hpp"
#include "collective/parts.hpp"
#include "collective/suite.hpp"
#include "collective/values.hpp"
#include "collective/windows.hpp"
#include "support/groups.hpp"
#include "support/indirect.hpp"
#include "support/partly_direct.hpp"
#include "support/ranks.hpp"

namespace processes_test {

namespace {
using indirect_processes = test::processes_over<test::indirect<peerbus::unified_bus>>;
using partly_direct_processes = test::processes_over<test::partly_direct<peerbus::unified_bus>>;
}  // namespace

#define PEERBUS_TEST_GROUPS test::direct_processes, indirect_processes

PEERBUS_TEST_COLLECTIVES(PEERBUS_TEST_GROUPS)

TEST_CASE("each algorithm, where pages are put") {
  using enum peerbus::collective::algorithm;
  collective_suite::on_teams_by<indirect_processes>({doubling, ring}, {1, 2, 3, 4, 5, 8});
}

TEST_CASE("algorithms found by trial") {
  namespace coll = collective_suite;
  for (const std::size_t n : {3U, 8U}) coll::on_team<test::direct_processes>(n, coll::check_trials);
  coll::on_team<test::direct_processes>(3, coll::check_no_trials, {.one_shot_bytes = 4096});
  peerbus::cost_table costs;
  costs.set("collective.loads.byte_ns", 100);
  coll::on_team<test::direct_processes>(3, coll::check_no_trials, {.costs = costs});
}

TEST_CASE("an operand in a window beside ranks that try algorithms") {
  namespace coll = peerbus::collective;
  const int worst_status = test::direct_processes::run(3, [](auto& comm) {
    constexpr std::size_t count = 5000;  // The costs choose two shots, the first lap tries one.
    coll::team on{comm};
    auto memory = comm.make_window(count * sizeof(float), 0);
    const std::span<float> own = memory.template local<float>().first(count);
    std::ranges::copy(collective_suite::values<float>(comm.rank().index(), count, 7), own.begin());
    std::vector<float> out(count);
    const auto call = [&] {
      if (comm.rank() == peerbus::rank_id{0})
        coll::all_reduce(on, coll::in_window(memory, own), out, coll::sum{});
      else
        coll::all_reduce(on, own, out, coll::sum{});
    };
    for (std::uint64_t i = 1; i < coll::detail::way_trials::first_trial; ++i) call();
    collective_suite::expect_same<float>(
        out, collective_suite::all_reduced<float>(3, count, 7, coll::sum{}), "all_reduce");
    test::expect_error(peerbus::errc::mismatch, {"by sum in two shots, rank 1"}, call);
  });
  CHECK(worst_status == 0);
}

TEST_CASE("two levels") {
  using enum peerbus::collective::algorithm;
  collective_suite::on_teams_by<partly_direct_processes>({two_levels, doubling}, {2, 4, 8});
}

TEST_CASE_TEMPLATE("large operands", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {2U, 5U})
    collective_suite::on_team<Group>(n, collective_suite::check_large);
  collective_suite::on_team<Group>(3, collective_suite::check_small, {.stream_bytes = 1});
}

TEST_CASE_TEMPLATE("large operands of fused operations", Group, PEERBUS_TEST_GROUPS) {
  collective_suite::on_team<Group>(3, collective_suite::check_large_fusions,
                                   {.scratch_bytes = std::size_t{1} << 17U});
}

TEST_CASE_TEMPLATE("64 ranks", Group, PEERBUS_TEST_GROUPS) {
  collective_suite::on_team<Group>(64, collective_suite::check_many_ranks, {.one_shot_bytes = 256});
  collective_suite::on_channels<Group>(
      64, [](collective_suite::channels& on) { collective_suite::check_batch(on, 0, 1, 1); });
}

TEST_CASE_TEMPLATE("parts beyond 4 GiB", Group, PEERBUS_TEST_GROUPS) {
  collective_suite::on_team<Group>(3, collective_suite::check_far_parts);
}

TEST_CASE_TEMPLATE("operands in windows", Group, test::direct_processes) {
  for (const std::size_t n : test::sizes_for<Group>({1, 2, 3, 5, 8}))
    collective_suite::check_windows<Group>(n);
}

#undef PEERBUS_TEST_GROUPS

}  // namespace processes_test
