// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <cstddef>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/all_gather.hpp>
#include <peerbus/collective/all_reduce.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/core/lane.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/simulated.hpp>

#include "collective/algorithms.hpp"
#include "collective/cases.hpp"
#include "collective/fusions.hpp"
#include "collective/halves.hpp"
#include "collective/messages.hpp"
#include "collective/parts.hpp"
#include "collective/suite.hpp"
#include "collective/values.hpp"
#include "collective/windows.hpp"
#include "simulated/support.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"

// Collective operations and messages between ranks, among far ranks only and with near ones, in
// many orders of what the network carries.

namespace collectives_test {

namespace {

using peerbus::rank_id;
using far_ranks = simulated_test::simulated_over<peerbus::simulated, 3>;
using ranks_of_nodes = simulated_test::simulated_over<peerbus::simulated, 3, 2>;
// A sanitizer sees the lines of both kinds of transport among nodes.
using any_ranks =
    std::conditional_t<test::is_sanitized, test::any_over<peerbus::any_transport, ranks_of_nodes>,
                       test::any_over<peerbus::any_transport, far_ranks, ranks_of_nodes>>;
using many_ranks = test::any_over<peerbus::any_transport,
                                  simulated_test::simulated_over<peerbus::simulated, 2, 8>>;

/// Ranks of nodes of two, an even number of them, where rank r is on node r modulo the number of
/// nodes, as the oracle of sums by groups assumes.
struct dealt_ranks {
  using transport = peerbus::simulated;
  static constexpr bool are_threads = true;
  template <class F>
  static int start(std::size_t ranks, F f) {
    return ranks_of_nodes::start(ranks, [ranks, f](peerbus::bootstrap& boot) {
      const std::size_t nodes = ranks / 2;
      std::vector<rank_id> members;
      for (std::size_t r = 0; r < ranks; ++r) members.emplace_back(2 * (r % nodes) + r / nodes);
      const auto group = boot.subgroup(members);
      f(*group);
    });
  }
};
using any_dealt_ranks = test::any_over<peerbus::any_transport, dealt_ranks>;

/// Lanes of a rank are fibres here, in place of the threads of `collective/lanes.hpp`.
void check_lanes(collective_suite::team& on) {
  namespace coll = peerbus::collective;
  const std::size_t n = on.size();
  const std::size_t lanes = 2 + on.rank().index() % 2;
  for (const std::size_t count : {0U, 5U, 257U, 20'001U}) {
    const auto mine = collective_suite::values<float>(on.rank().index(), count, count);
    std::vector<float> sums(count);
    std::vector<float> all(n * count);
    peerbus::simulated::run_lanes(lanes, [&](peerbus::lane as) {
      coll::all_reduce(on, mine, sums, coll::sum{}, {.as = as});
      coll::all_gather(on, mine, all, {.as = as});
    });
    collective_suite::expect_same<float>(
        sums, collective_suite::all_reduced<float>(n, count, count, coll::sum{}), "all_reduce");
    collective_suite::expect_same<float>(all, collective_suite::gathered<float>(n, count, count),
                                         "all_gather");
  }
}

}  // namespace

PEERBUS_TEST_COLLECTIVES(any_ranks)

TEST_CASE("halves of two teams") {
  for (const std::size_t n : {1U, 3U, 8U}) {
    const int worst_status = any_ranks::run(n, [](auto& comm) {
      collective_suite::team one{comm};
      collective_suite::team two{comm};
      collective_suite::check_two_teams(one, two);
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("each algorithm, whole and in halves") {
  namespace coll = peerbus::collective;
  using enum coll::algorithm;
  using collective_suite::check_halves_by_algorithm;
  collective_suite::on_teams_by<any_ranks>({doubling, ring, two_shots, one_shot}, {3, 8});
  collective_suite::on_teams_by<any_dealt_ranks>({two_levels}, {2, 4, 8});
  for (const coll::algorithm by : {doubling, ring, two_shots, two_levels})
    collective_suite::on_team<any_ranks>(4, check_halves_by_algorithm,
                                         {.scratch_bytes = 10240, .algorithm = by});
}

TEST_CASE("large operands, in many slices") {
  collective_suite::on_team<any_ranks>(3, collective_suite::check_large);
  collective_suite::on_team<any_ranks>(3, collective_suite::check_large_fusions,
                                       {.scratch_bytes = std::size_t{1} << 17U});
}

TEST_CASE("operands in windows") {
  for (const std::size_t n : {1U, 3U}) collective_suite::check_windows<any_ranks>(n);
}

TEST_CASE("operations by several lanes") {
  for (const std::size_t n : {1U, 2U, 3U}) collective_suite::on_team<any_ranks>(n, check_lanes);
}

TEST_CASE("64 ranks" * doctest::skip(test::is_sanitized)) {
  collective_suite::on_team<many_ranks>(64, collective_suite::check_many_ranks,
                                        {.one_shot_bytes = 256});
  collective_suite::on_channels<many_ranks>(
      64, [](collective_suite::channels& on) { collective_suite::check_batch(on, 0, 1, 1); });
}

TEST_CASE("messages that do not match, and refused ones") {
  collective_suite::on_channels<any_ranks>(3, collective_suite::check_message_mismatch);
  collective_suite::on_channels<any_ranks>(3, collective_suite::check_bad_messages);
}

}  // namespace collectives_test
