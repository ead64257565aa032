// SPDX-License-Identifier: MIT
// ctest: tsan
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/plan/replica_cycles.hpp>
#include <peerbus/moe/relay.hpp>

#include "support/exchange_check.hpp"
#include "support/groups.hpp"
#include "support/oracle.hpp"
#include "support/partly_direct.hpp"
#include "support/placed_experts.hpp"
#include "support/ranks.hpp"
#include "support/two_level_check.hpp"

namespace replicas_test {

// Experts that lie at several ranks, at ranks with any number of them.

namespace {

using peerbus::errc;
using peerbus::rank_id;
using peerbus::codec::int8_per_token;
using peerbus::moe::exchange;
using peerbus::moe::exchange_config;
using peerbus::moe::replica_policy;
using direct = test::direct_threads;
using staged = test::staged_threads;
using processes = test::direct_processes;
using near_and_far = test::any_over<peerbus::any_transport,
                                    test::threads_over<test::partly_direct<peerbus::loopback>>>;
template <class Codec, class Group>
void check_layouts(std::size_t ranks, std::uint64_t seed, replica_policy policy,
                   placed_experts::nearness near = placed_experts::nearness::own) {
  CAPTURE(ranks);
  CAPTURE(seed);
  CAPTURE(describe(policy));
  const int worst_status = Group::run(ranks, [&](auto& comm) {
    const placed_experts::case_of_replicas given{comm.size(), seed, policy, near};
    const auto check = [&](const auto& layout) {
      placed_experts::check<Codec>(comm, layout, given);
    };
    check(peerbus::moe::compact{});
    check(peerbus::moe::compact{.alignment = 4, .zero_gaps = true});
    check(peerbus::moe::padded{});
    check(peerbus::moe::expert_slots{});
    check(peerbus::moe::automatic{});
    if (policy == replica_policy::weighted) return;  // No oracle tells its sums of ranks.
    check(peerbus::moe::rank_major{});
    check(peerbus::moe::slots{});
    check(peerbus::moe::automatic_by_rank{});
  });
  CHECK(worst_status == 0);
}

constexpr std::array policies{replica_policy::nearest, replica_policy::round_robin,
                              replica_policy::weighted, replica_policy::fixed};

}  // namespace

TEST_CASE("experts at several ranks, by stores") {
  for (const replica_policy policy : policies)
    for (const std::size_t ranks : {1U, 2U, 3U, 5U, 8U})
      check_layouts<int8_per_token, direct>(ranks, 10 * ranks, policy);
}

TEST_CASE("experts at several ranks, by puts, with tokens as they are") {
  for (const replica_policy policy : policies)
    for (const std::size_t ranks : {2U, 4U, 7U})
      check_layouts<peerbus::codec::bf16, staged>(ranks, 100 + ranks, policy);
}

TEST_CASE("experts at several processes") {
  for (const replica_policy policy : policies)
    check_layouts<int8_per_token, processes>(4, 7, policy);
}

TEST_CASE("replicas at this rank come before those of its host, and these before others") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed)
    check_layouts<int8_per_token, near_and_far>(6, seed, replica_policy::nearest,
                                                placed_experts::nearness::parity);
}

TEST_CASE("replicas take turns in proportion to their quotas") {
  const std::vector<std::uint32_t> logical{0, 1, 0, 2, 0, peerbus::moe::vacant};
  const std::vector<std::uint32_t> of_rank{2, 2, 1, 1};
  const exchange_config config{.experts = 3,
                               .hidden = 8,
                               .top_k = 1,
                               .max_tokens = 1,
                               .physical_to_logical = logical,
                               .experts_of_rank = of_rank};
  const peerbus::moe::expert_map map{config, 4};
  const std::vector<std::uint32_t> distances(4);
  const auto shares = [&](std::vector<std::uint32_t> quotas, std::size_t tokens) {
    const peerbus::moe::replica_cycles cycles{
        map,
        {.policy = replica_policy::weighted, .quotas = quotas, .distances = distances},
        rank_id{1}};
    std::vector<std::size_t> rows(6);
    for (std::size_t t = 0; t < tokens; ++t) ++rows[cycles.of(0, t)];
    CHECK(cycles.of(1, 3) == 1);
    CHECK(cycles.of(2, 3) == 3);
    return rows;
  };
  CHECK(shares({1, 1, 2, 1, 3, 0}, 60) == std::vector<std::size_t>{10, 0, 20, 0, 30, 0});
  CHECK(shares({500, 1, 0, 9, 1500, 0}, 8) == std::vector<std::size_t>{2, 0, 0, 0, 6, 0});
  // 1000 : 1 : 999, in 256ths.
  CHECK(shares({1000, 1, 1, 1, 999, 0}, 2560) == std::vector<std::size_t>{1280, 0, 0, 0, 1280, 0});
  // Any three tokens that follow each other go to different replicas.
  const peerbus::moe::replica_cycles even{
      map, {.policy = replica_policy::round_robin, .distances = distances}, rank_id{2}};
  const std::array<std::uint32_t, 3> turns{0, 2, 4};
  for (std::size_t t = 0; t < 50; ++t) CHECK(even.of(0, t) == turns[(t + 2) % 3]);
  // The remainder of large numbers, which is computed without a division.
  for (const std::size_t t : {4'294'967'290U, 4'000'000'001U, 2'147'483'647U})
    CHECK(even.of(0, t) == turns[(t + 2) % 3]);
}

TEST_CASE("experts at several ranks of hosts that relay") {
  struct grid {
    std::size_t ranks;
    test::hosts dealt;
    std::size_t least_replicas;
  };
  for (const grid& row : {grid{4, {2, false}, 1}, grid{5, {2, true}, 1}, grid{6, {3, false}, 2}})
    for (const replica_policy policy : policies) {
      // Each policy has both, and so has each grid.
      const bool equal_places = (row.ranks + static_cast<std::size_t>(policy)) % 2 == 0;
      CAPTURE(row.ranks);
      CAPTURE(describe(policy));
      CAPTURE(equal_places);
      test::pretended = row.dealt;
      placed_experts::case_of_replicas given{row.ranks, 20 + row.ranks, policy,
                                             placed_experts::nearness::own, row.least_replicas};
      given.relay_between(row.dealt.host_of_each(row.ranks), equal_places);
      const int worst_status = test::threads_on_hosts::run(row.ranks, [&](auto& comm) {
        const auto check = [&]<class Codec>(Codec, const auto& layout) {
          placed_experts::check<Codec>(comm, layout, given);
        };
        check(int8_per_token{}, peerbus::moe::compact{.alignment = 4, .zero_gaps = true});
        check(peerbus::codec::bf16{}, peerbus::moe::expert_slots{});
        check(peerbus::codec::bf16{}, peerbus::moe::rank_major{});
        check(int8_per_token{}, peerbus::moe::slots{});
        if (policy != replica_policy::round_robin) return;
        check(int8_per_token{}, peerbus::moe::padded{});
        check(int8_per_token{}, peerbus::moe::automatic{});
        check(int8_per_token{}, peerbus::moe::automatic_by_rank{});
      });
      CHECK(worst_status == 0);
    }
}

TEST_CASE("a replica at the host of a token saves the crossing") {
  test::pretended = {2, false};
  constexpr std::uint32_t none = peerbus::moe::vacant;
  const std::vector<std::uint32_t> all{0, 1, 2, 3, 4, 5, 6, 7, 7, 6, 5, 4, 3, 2, 1, 0};
  const std::vector<std::uint32_t> some{0, 1, 4, 2, 3, 5, 4, 5, 0, 6, 7, none};
  std::array<std::atomic<std::uint64_t>, 4> far{};
  const int worst_status = test::threads_on_hosts::run(4, [&](auto& comm) {
    exchange_config config{.experts = 8, .hidden = 64, .top_k = 3, .max_tokens = 12};
    config.relay = peerbus::moe::relay::always;
    const oracle::shape shape{4, config.experts, config.hidden, config.top_k};
    const auto mine = oracle::make_input(shape, comm.rank().index(), config.max_tokens,
                                         oracle::routes::uniform, 3);
    const auto rows_that_cross = [&](std::span<const std::uint32_t> logical) {
      config.physical_to_logical = logical;
      exchange moe{comm, config, int8_per_token{}};
      const auto got = moe.dispatch(mine.tokens, {mine.experts, mine.weights});
      test::run_experts(got);
      std::vector<peerbus::bf16> out(mine.tokens.size());
      moe.combine(got, out);
      return moe.traffic(got.ticket()).far_rows;
    };
    far[0] += rows_that_cross({});
    far[1] += rows_that_cross(some);
    far[2] += rows_that_cross(all);
    // A rank may say that all replicas are equally far, which then take turns.
    const std::vector<std::uint32_t> distances(4);
    config.replicas.distances = distances;
    far[3] += rows_that_cross(all);
    // Where crossing is dear, `automatic` relays too.
    peerbus::cost_table costs;
    costs.set("moe.relay.far_byte_ns", 1000);
    config.costs = &costs;
    config.relay = peerbus::moe::relay::automatic;
    const exchange moe{comm, config, int8_per_token{}};
    test::expect(moe.relay().relays, describe(moe.relay()));
  });
  CHECK(worst_status == 0);
  CHECK(far[1] < far[0]);
  CHECK(far[2] == 0);
  CHECK(far[3] > 0);
}

TEST_CASE("bad tables of experts are refused on all ranks, by what is wrong in them") {
  using table = std::vector<std::uint32_t>;
  const int worst_status = direct::run(3, [](auto& comm) {
    const exchange_config good{.experts = 4, .hidden = 16, .top_k = 2, .max_tokens = 3};
    const bool is_last = comm.rank().index() == 2;
    const auto make = [&](const exchange_config& config) {
      exchange moe{comm, config, int8_per_token{}};
    };
    const auto refused = [&](errc code, std::vector<std::string_view> says, const table& logical,
                             const table& of_rank) {
      exchange_config config = good;
      config.physical_to_logical = logical;
      config.experts_of_rank = of_rank;
      for (const std::string_view part : says)
        test::expect_error(code, {part}, [&] { make(config); });
    };
    refused(errc::invalid_argument, {"experts_of_rank has 2 entries, expected none or ranks, 3"},
            {}, {2, 2});
    refused(errc::invalid_argument, {"experts_of_rank adds up to 5, expected experts, 4"}, {},
            {2, 3, 0});
    refused(errc::invalid_argument,
            {"physical_to_logical has 4 entries, expected the sum of experts_of_rank, 5"},
            {0, 1, 2, 3}, {2, 3, 0});
    refused(errc::invalid_argument,
            {"physical_to_logical[3] is 1, which physical expert 2 of rank 1 is too"},
            {0, 2, 1, 1, 3, 0}, {});
    refused(errc::invalid_argument, {"physical_to_logical lacks expert 3"},
            {0, 2, 1, peerbus::moe::vacant, 2, 0}, {});
    refused(errc::invalid_argument, {"physical_to_logical[3] is 4, expected 0 to 3, or vacant"},
            {0, 2, 1, 4, 3, 0}, {});
    refused(errc::mismatch, {"physical_to_logical[4] is 3 on rank 0 but 0 on rank 2"},
            is_last ? table{0, 2, 1, 3, 0, 1} : table{0, 2, 1, 3, 3, 1}, {});
    refused(errc::mismatch, {"experts_of_rank[1] is 1 on rank 0 but 2 on rank 2"}, {},
            is_last ? table{1, 2, 1} : table{1, 1, 2});
    refused(errc::mismatch, {"physical experts is 6 on rank 0 but 4 on rank 2"},
            is_last ? table{0, 1, 2, 3} : table{0, 2, 1, 3, 3, 1}, {});
    // One rank's mistake is told on all.
    exchange_config config = good;
    const table half{0, 1, 2};
    if (is_last) config.physical_to_logical = half;
    test::expect_error(errc::invalid_argument, {"has 3 entries"}, [&] { make(config); });

    const table logical{0, 1, 2, peerbus::moe::vacant, 3, 0};
    const auto bad_choice = [&](std::string_view says, replica_policy policy, const table& quotas,
                                const table& chosen, const table& distances = {}) {
      exchange_config wrong = good;
      wrong.physical_to_logical = logical;
      if (is_last) wrong.replicas = {policy, quotas, chosen, distances};
      test::expect_error(errc::invalid_argument, {says}, [&] { make(wrong); });
    };
    using enum replica_policy;
    bad_choice("replicas.policy is 4", static_cast<replica_policy>(4), {}, {});
    bad_choice("replicas.quotas has 0 entries with policy weighted, expected 6", weighted, {}, {});
    bad_choice("replicas.quotas has 6 entries with policy nearest, expected 0", nearest,
               {1, 1, 1, 1, 1, 1}, {});
    bad_choice("replicas.quotas[3] is 7, but that physical expert is vacant", weighted,
               {1, 1, 1, 7, 1, 1}, {});
    bad_choice("replicas.quotas are 0 for all replicas of expert 0", weighted, {0, 1, 1, 0, 1, 0},
               {});
    bad_choice("replicas.chosen[2] is 3, which is vacant, expected a replica of expert 2", fixed,
               {}, {0, 1, 3, 4});
    bad_choice("replicas.chosen[3] is 5, which is expert 0", fixed, {}, {0, 1, 2, 5});
    bad_choice("replicas.chosen[3] is 6, expected 0 to 5", fixed, {}, {0, 1, 2, 6});
    bad_choice("replicas.chosen has 3 entries with policy fixed, expected 4", fixed, {}, {0, 1, 2});
    bad_choice("replicas.distances has 2 entries with policy nearest, expected 3", nearest, {}, {},
               {0, 1});
    // Places that are dealt out equally: left out, or written down.
    const table in_order{0, 1, 2, 3};
    const table dealt{2, 1, 1};
    exchange_config written = good;
    if (comm.rank().index() == 0) written.experts_of_rank = dealt;
    if (is_last) written.physical_to_logical = in_order;
    make(written);
    exchange_config right = good;
    right.physical_to_logical = logical;
    make(right);
  });
  CHECK(worst_status == 0);
}

}  // namespace replicas_test
