// SPDX-License-Identifier: MIT
// ctest: tsan
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/relay.hpp>

#include "support/groups.hpp"
#include "support/oracle.hpp"
#include "support/placed_experts.hpp"
#include "support/ranks.hpp"
#include "support/two_level_check.hpp"

namespace install_experts_test {

// Experts that move between two batches, in the same windows.

namespace {

using peerbus::errc;
using peerbus::codec::int8_per_token;
using peerbus::moe::exchange;
using peerbus::moe::replica_policy;
using placed_experts::case_of_replicas;
using placed_experts::table;

constexpr std::array policies{replica_policy::round_robin, replica_policy::fixed,
                              replica_policy::nearest};

/// Ranks that all store to each other, or that are dealt out to hosts which relay.
struct direct {
  using group = test::direct_threads;
  static case_of_replicas place(case_of_replicas given) { return given; }
};
struct relayed {
  using group = test::threads_on_hosts;
  static case_of_replicas place(case_of_replicas given) {
    given.relay_between(test::pretended.host_of_each(given.ranks), true);
    return given;
  }
};

template <class Communicator, class Layout>
void check(Communicator& comm, const Layout& layout, std::uint64_t seed,
           const std::vector<std::size_t>& hosts = {}) {
  const std::size_t me = comm.rank().index();
  case_of_replicas given{comm.size(), seed, policies[seed % 3]};
  if (!hosts.empty()) given.relay_between(hosts, seed % 2 == 0);
  auto config = given.config_of(me);
  config.in_flight = 1 + seed % 2;
  exchange moved{comm, config, int8_per_token{}, layout};
  const std::byte* const memory = moved.memory().local().data();
  for (std::uint64_t round = 0; round < 6; ++round) {
    for (std::uint64_t batch = 0; batch < 1 + round % 3; ++batch)
      placed_experts::check_round<int8_per_token>(moved, me, layout, given, 7 * round + batch);
    given.shuffle(seed + round);
    given.policy = policies[round % 3];
    moved.install_experts(given.logical, given.choice_of(me));
    test::expect(moved.config().replicas.policy == given.policy, "the policy");
  }
  placed_experts::check_round<int8_per_token>(moved, me, layout, given, 1);
  test::expect(moved.relay().relays == given.relays(), describe(moved.relay()));
  test::expect(moved.memory().local().data() == memory, "the same window");
}

template <class Group>
void check_layouts(std::size_t ranks, std::uint64_t seed,
                   const std::vector<std::size_t>& hosts = {}) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [&](auto& comm) {
    check(comm, peerbus::moe::compact{.alignment = 2}, seed, hosts);
    check(comm, peerbus::moe::padded{}, seed + 1, hosts);
    check(comm, peerbus::moe::expert_slots{}, seed + 2, hosts);
    check(comm, peerbus::moe::rank_major{}, seed + 3, hosts);
    check(comm, peerbus::moe::slots{}, seed + 4, hosts);
  });
  CHECK(worst_status == 0);
}

}  // namespace

TEST_CASE("experts move between batches, by stores") {
  for (const std::size_t ranks : {1U, 3U, 6U}) check_layouts<test::direct_threads>(ranks, ranks);
}

TEST_CASE("experts move between batches, by puts") { check_layouts<test::staged_threads>(4, 2); }

TEST_CASE("experts move between processes") { check_layouts<test::direct_processes>(3, 9); }

TEST_CASE("experts move between hosts that relay") {
  for (const std::size_t ranks : {4U, 5U}) {
    test::pretended = {2, ranks == 4};
    check_layouts<relayed::group>(ranks, 5 * ranks, test::pretended.host_of_each(ranks));
  }
}

TEST_CASE_TEMPLATE("a bad table is refused on all ranks, and the experts stay where they are",
                   Ranks, direct, relayed) {
  test::pretended = {2, true};
  const int worst_status = Ranks::group::run(3, [](auto& comm) {
    const std::size_t me = comm.rank().index();
    const case_of_replicas given = Ranks::place({3, 4, replica_policy::round_robin});
    auto config = given.config_of(me);
    exchange moe{comm, config, int8_per_token{}};
    std::uint64_t round = 0;
    const auto still_works = [&] {
      for (int batch = 0; batch < 2; ++batch)
        placed_experts::check_round<int8_per_token>(moe, me, peerbus::moe::compact{}, given,
                                                    ++round);
    };
    const auto refused = [&](errc code, std::string_view says, const table& logical,
                             const peerbus::moe::replica_choice& choice) {
      test::expect_error(code, {says}, [&] { moe.install_experts(logical, choice); });
      still_works();
    };
    still_works();
    const auto choice = given.choice_of(me);
    const bool is_odd_one = me == 1;
    // One rank's table is bad: all are told, and why.
    table longer = given.logical;
    longer.push_back(0);
    refused(errc::invalid_argument, "physical_to_logical has", is_odd_one ? longer : given.logical,
            choice);
    refused(errc::invalid_argument, "physical_to_logical has", is_odd_one ? table{} : given.logical,
            choice);
    table lacking = given.logical;
    for (auto& expert : lacking)
      if (expert == 3) expert = peerbus::moe::vacant;
    refused(errc::invalid_argument, "physical_to_logical lacks expert 3",
            is_odd_one ? lacking : given.logical, choice);
    table twice = given.logical;
    test::expect(given.experts_of_rank[0] >= 3, "experts at rank 0");
    twice[0] = twice[1] == peerbus::moe::vacant ? twice[2] : twice[1];
    const std::size_t second = twice[1] == peerbus::moe::vacant ? 2 : 1;
    refused(errc::invalid_argument,
            peerbus::concat("physical_to_logical[", second, "] is ", twice[0],
                            ", which physical expert 0 of rank 0 is too"),
            is_odd_one ? twice : given.logical, choice);
    // Tables that are good, but not the same.
    case_of_replicas other = given;
    other.shuffle(77);
    std::size_t first = 0;
    while (given.logical[first] == other.logical[first]) ++first;
    refused(errc::mismatch,
            peerbus::concat("physical_to_logical[", first, "] is ", given.logical[first],
                            " on rank 0 but ", other.logical[first], " on rank 1"),
            is_odd_one ? other.logical : given.logical, choice);
    // A choice that names a place without expert.
    table chosen = given.chosen[me];
    std::uint32_t vacancy = 0;
    while (given.logical[vacancy] != peerbus::moe::vacant) ++vacancy;
    if (is_odd_one) chosen[5] = vacancy;
    refused(errc::invalid_argument, "which is vacant, expected a replica of expert 5",
            given.logical, {.policy = replica_policy::fixed, .chosen = chosen});
  });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE(
    "experts do not move while a batch waits to be combined, after a dispatch was refused", Ranks,
    direct, relayed) {
  test::pretended = {2, false};
  const int worst_status = Ranks::group::run(4, [](auto& comm) {
    const std::size_t me = comm.rank().index();
    case_of_replicas given = Ranks::place({4, 4, replica_policy::round_robin});
    auto config = given.config_of(me);
    config.in_flight = 3;
    exchange moe{comm, config, int8_per_token{}};
    auto mine = placed_experts::inputs_of(given, 1)[me];
    const auto got = moe.dispatch(mine.tokens, {mine.experts, mine.weights});
    auto bad = placed_experts::inputs_of(given, 2)[me];
    if (me == 0) bad.experts.at(0) = 99;
    test::expect_error(me == 0 ? errc::invalid_argument : errc::refused, {"dispatch 2"}, [&] {
      static_cast<void>(moe.dispatch(bad.tokens, {bad.experts, bad.weights}));
    });
    test::expect_error(errc::invalid_argument, {"dispatch 1 is received"},
                       [&] { moe.install_experts(given.logical, given.choice_of(me)); });
    test::run_experts(got);
    std::vector<peerbus::bf16> out(mine.tokens.size());
    moe.combine(got, out);
    given.shuffle(8);
    moe.install_experts(given.logical, given.choice_of(me));
    for (std::uint64_t round = 0; round < 4; ++round)
      placed_experts::check_round<int8_per_token>(moe, me, peerbus::moe::compact{}, given, round);
  });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE("experts do not move while a batch is under way", Ranks, direct, relayed) {
  test::pretended = {2, true};
  const int worst_status = Ranks::group::run(3, [](auto& comm) {
    const std::size_t me = comm.rank().index();
    const case_of_replicas given = Ranks::place({3, 4, replica_policy::round_robin});
    auto config = given.config_of(me);
    config.in_flight = 2;
    exchange moe{comm, config, int8_per_token{}};
    const auto mine = placed_experts::inputs_of(given, 1)[me];
    std::vector<peerbus::bf16> out(mine.tokens.size());
    case_of_replicas later = given;
    later.shuffle(5);
    const auto refused = [&](std::string_view says) {
      test::expect_error(errc::invalid_argument, {says},
                         [&] { moe.install_experts(later.logical, later.choice_of(me)); });
    };
    const auto ticket = moe.dispatch_send(mine.tokens, {mine.experts, mine.weights});
    refused("dispatch 1 is not received yet");
    const auto got = moe.dispatch_recv(ticket);
    refused("dispatch 1 is received");
    const auto second = moe.dispatch_send(mine.tokens, {mine.experts, mine.weights});
    test::run_experts(got);
    moe.combine_send(got);
    refused("dispatch 1 is on its way home");
    moe.combine_recv(got, out);
    test::expect(
        out == placed_experts::sums_of<int8_per_token, peerbus::moe::compact>(given, mine, me),
        "the sums");
    refused("dispatch 2 is not received yet");
    const auto also = moe.dispatch_recv(second);
    test::run_experts(also);
    moe.combine(also, out);
    moe.install_experts(later.logical, later.choice_of(me));
    // What was combined before is over.
    test::expect_error(errc::invalid_argument, {"reopen was given the rows of dispatch 2"},
                       [&] { moe.reopen(also); });
    placed_experts::check_round<int8_per_token>(moe, me, peerbus::moe::compact{}, later, 2);
  });
  CHECK(worst_status == 0);
}

}  // namespace install_experts_test
