// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <doctest/doctest.h>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/measure_costs.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/copy.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/this_machine.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "collective/algorithms.hpp"
#include "collective/cases.hpp"
#include "collective/fusions.hpp"
#include "collective/halves.hpp"
#include "collective/lanes.hpp"
#include "collective/messages.hpp"
#include "collective/parts.hpp"
#include "collective/suite.hpp"
#include "collective/windows.hpp"
#include "support/background.hpp"
#include "support/grouped.hpp"
#include "support/groups.hpp"
#include "support/indirect.hpp"
#include "support/partly_direct.hpp"
#include "support/ranks.hpp"

namespace threads_test {

namespace {

using loopback_threads = test::threads_over<peerbus::loopback>;
using unified_bus_threads = test::threads_over<peerbus::unified_bus>;
using indirect_threads = test::threads_over<test::indirect<peerbus::loopback>>;
using partly_direct_threads = test::threads_over<test::partly_direct<peerbus::loopback>>;
using three_hosts = test::threads_over<test::lazy_planes<3>>;
using background_threads = test::threads_over<test::background<peerbus::loopback>>;

/// Reads private memory by loads, which ThreadSanitizer sees, unlike the kernel's.
class loading : public peerbus::loopback {
 public:
  using peerbus::loopback::loopback;
  [[nodiscard]] peerbus::errc get_private(peerbus::rank_id, const window&, std::uint64_t address,
                                          std::span<std::byte> target) noexcept {
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    const auto* const source = reinterpret_cast<const std::byte*>(address);
    peerbus::detail::copy_bytes(target.data(), source, target.size());
    return peerbus::errc::ok;
  }
};
using loading_threads = test::threads_over<loading>;

/// Rank 0 has left when rank 1 raises signal 4, by which its channels tell of a slice it has taken.
class departed : public peerbus::loopback {
 public:
  using peerbus::loopback::loopback;
  [[nodiscard]] peerbus::errc signal(peerbus::rank_id peer, const window& at, peerbus::signal_id id,
                                     std::uint64_t value) noexcept {
    if (id == peerbus::signal_id{4}) return peerbus::errc::unreachable;
    return peerbus::loopback::signal(peer, at, id, value);
  }
};

}  // namespace

PEERBUS_TEST_COLLECTIVES(loopback_threads, unified_bus_threads, indirect_threads,
                         partly_direct_threads, background_threads, test::direct_threads,
                         test::staged_threads)

TEST_CASE_TEMPLATE("algorithms found by trial", Group, loopback_threads, test::direct_threads) {
  collective_suite::on_team<Group>(4, collective_suite::check_trials);
}

TEST_CASE_TEMPLATE("operations by several lanes", Group, loopback_threads, unified_bus_threads,
                   indirect_threads) {
  for (const std::size_t ranks : {1U, 2U, 3U})
    for (const std::size_t lanes : {2U, 3U})
      collective_suite::on_team<Group>(
          ranks, [lanes](auto& on) { collective_suite::check_lanes(on, lanes); });
}

TEST_CASE("each algorithm by several lanes") {
  namespace coll = peerbus::collective;
  using enum coll::algorithm;
  const auto body = [](collective_suite::team& on) {
    collective_suite::check_lanes(on, 3);
    collective_suite::check_shared_reductions(on);
  };
  for (const coll::algorithm by : {doubling, ring, two_shots})
    collective_suite::on_team<indirect_threads>(3, body, {.algorithm = by});
  collective_suite::on_team<partly_direct_threads>(4, body, {.algorithm = two_levels});
}

TEST_CASE_TEMPLATE("operands in windows by several lanes", Group, loopback_threads,
                   unified_bus_threads) {
  for (const std::size_t ranks : {1U, 2U, 3U})
    collective_suite::check_lanes_in_windows<Group>(ranks, 3);
}

TEST_CASE("lanes share what an operation throws") {
  collective_suite::on_team<loopback_threads>(2, collective_suite::check_lanes_that_throw);
  CHECK(loopback_threads::run(1, [](auto& comm) {
          collective_suite::channels on{comm, collective_suite::small_slots};
          collective_suite::check_lanes_of_messages(on);
        }) == 0);
}

TEST_CASE("a lane that does not come is named") {
  using collective_suite::check_missing_lane;
  for (const bool is_second_half : {false, true})
    for (const std::size_t missing : {0U, 1U})
      collective_suite::on_team<loopback_threads>(1, [=](auto& on) {
        check_missing_lane(on, {.index = 1 - missing, .count = 2}, missing, is_second_half);
      });
}

TEST_CASE("lanes in different calls are named") {
  collective_suite::on_team<loopback_threads>(1, collective_suite::check_lanes_of_different_calls);
}

TEST_CASE("operands in private memory") {
  for (const std::size_t ranks : {2U, 5U})
    for (const collective_suite::team_options& options :
         {collective_suite::team_options{.private_bytes = 1},
          collective_suite::team_options{.scratch_bytes = 10240, .private_bytes = 1}}) {
      collective_suite::on_team<loading_threads>(ranks, collective_suite::check_small, options);
      collective_suite::on_team<loading_threads>(ranks, collective_suite::check_halves, options);
      collective_suite::on_team<loading_threads>(ranks, collective_suite::check_parts, options);
    }
  collective_suite::on_team<loading_threads>(
      2, [](auto& on) { collective_suite::check_lanes(on, 3); }, {.private_bytes = 1});
  collective_suite::on_channels_of_all_sizes<loading_threads>(
      collective_suite::check_messages, {.scratch_bytes = 12288, .private_bytes = 1});
}

TEST_CASE("each algorithm in halves") {
  namespace coll = peerbus::collective;
  using collective_suite::check_halves_by_algorithm;
  using enum coll::algorithm;
  const auto options_for = [](coll::algorithm by) {
    return coll::team_options{.scratch_bytes = 10240, .algorithm = by};
  };
  for (const std::size_t ranks : test::sizes_for<indirect_threads>({2, 3, 5, 8}))
    for (const coll::algorithm by : {doubling, ring, two_shots})
      collective_suite::on_team<indirect_threads>(ranks, check_halves_by_algorithm,
                                                  options_for(by));
  collective_suite::on_team<partly_direct_threads>(4, check_halves_by_algorithm,
                                                   options_for(two_levels));
}

TEST_CASE_TEMPLATE("halves of two teams", Group, test::direct_threads, test::staged_threads) {
  for (const std::size_t n : test::sizes_for<Group>({1, 2, 3, 5, 8})) {
    const int worst_status = Group::run(n, [](auto& comm) {
      collective_suite::team one{comm};
      collective_suite::team two{comm};
      collective_suite::check_two_teams(one, two);
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("a message whose sender has left is received") {
  const int worst_status = test::threads_over<departed>::run(2, [](auto& comm) {
    collective_suite::channels on{comm, collective_suite::small_slots};
    collective_suite::check_last_message(on);
  });
  CHECK(worst_status == 0);
}

TEST_CASE("each algorithm, where pages are put") {
  using enum peerbus::collective::algorithm;
  collective_suite::on_teams_by<indirect_threads>({doubling, ring, two_shots, one_shot},
                                                  {1, 2, 3, 4, 5, 8});
  collective_suite::on_teams_by<background_threads>({doubling, ring}, {2, 3, 5});
}

TEST_CASE("each algorithm over two planes") {
  using enum peerbus::collective::algorithm;
  collective_suite::on_teams_by<partly_direct_threads>({doubling, ring, two_levels},
                                                       {1, 2, 3, 4, 5, 8});
  collective_suite::on_teams_by<three_hosts>({two_levels}, {6});
}

TEST_CASE_TEMPLATE("measured costs are equal on all ranks", Group, test::direct_threads,
                   test::staged_threads) {
  namespace coll = peerbus::collective;
  for (const std::size_t ranks : {1U, 2U, 3U}) {
    const int worst_status = Group::run(ranks, [](auto& comm) {
      peerbus::cost_table known;
      known.set("moe.round_us", 3);
      const coll::measure_options quick{.turns = 2, .calls = 2};
      const peerbus::cost_table costs = coll::measure_costs(comm, known, quick);
      test::expect_equal(costs.find("moe.round_us").value_or(0), 3.0, "another cost");
      coll::team on{comm, {.costs = costs}};  // Compares their hash.
      const auto name = "collective." + std::string{name_of(on.shape().access)} + ".round_us";
      test::expect_equal(costs.find(name).has_value(), on.size() > 1, "a measured cost");
      if (on.size() > 1)
        test::expect_equal(on.costs().round_us, costs.find(name).value_or(0), "the team's cost");
      test::expect_equal(std::string{costs.machine()},
                         on.size() > 1 ? "an unnamed machine and " + peerbus::this_machine() : "",
                         "the machine");
      if (on.size() > 1)
        test::expect_equal(std::string{coll::measure_costs(comm, {}, quick).machine()},
                           peerbus::this_machine(), "the machine of an empty table");
      collective_suite::check_reductions<float>(on, 65, 3, coll::sum{});
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE_TEMPLATE("teams whose costs are all 0, or measured on different machines", Group,
                   test::direct_threads, test::staged_threads) {
  namespace coll = peerbus::collective;
  for (const std::size_t ranks : {1U, 3U}) {
    const int worst_status = Group::run(ranks, [](auto& comm) {
      peerbus::cost_table none;
      for (const char* const access : {"loads", "puts", "planes"})
        for (const char* const cost : {"round_us", "message_us", "byte_ns", "ring_byte_ns",
                                       "near_byte_ns", "reduce_byte_ns"})
          none.set("collective." + std::string{access} + "." + cost, 0);
      none.set_machine("machine of rank " + std::to_string(comm.rank().index()));
      for (const bool may_reorder : {false, true}) {
        coll::team on{comm, {.costs = none, .may_reorder = may_reorder}};
        const std::size_t large = std::size_t{1} << 20U;
        for (const std::size_t bytes : {std::size_t{8}, large})
          test::expect_equal(name_of(on.algorithm_of(coll::choice_of::all_reduce, bytes)),
                             "one_shot", "the algorithm");
        collective_suite::check_reductions<float>(on, 65, 3, coll::sum{});
        collective_suite::check_reductions<float>(on, large / 4, 3, coll::sum{});
      }
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE_TEMPLATE("all operations, in one slice", Group, loopback_threads, indirect_threads) {
  for (const std::size_t n : {2U, 3U})
    collective_suite::on_team<Group>(n, collective_suite::check_small);
}

TEST_CASE_TEMPLATE("large operands", Group, loopback_threads, indirect_threads) {
  for (const std::size_t n : {2U, 3U})
    collective_suite::on_team<Group>(n, collective_suite::check_large);
}

TEST_CASE_TEMPLATE("operands in windows", Group, test::direct_threads, test::staged_threads) {
  for (const std::size_t n : test::sizes_for<Group>({1, 2, 3, 5, 8}))
    collective_suite::check_windows<Group>(n);
}

TEST_CASE("a window on some ranks only is an error on all") {
  collective_suite::check_window_mismatch<test::direct_threads>();
}

TEST_CASE("different windows are an error on all ranks") {
  collective_suite::check_different_windows<test::direct_threads>();
  collective_suite::check_foreign_window<loopback_threads>();
}

}  // namespace threads_test
