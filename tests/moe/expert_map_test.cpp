// SPDX-License-Identifier: MIT
// ctest: tsan
#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/expert_map.hpp>

#include "support/exchange_check.hpp"
#include "support/groups.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace expert_map_test {

// Experts that lie elsewhere than in their order.

namespace {

using peerbus::bf16;
using peerbus::errc;
using peerbus::rank_id;
using peerbus::codec::int8_per_token;
using peerbus::moe::exchange;
using peerbus::moe::exchange_config;
using direct = test::direct_threads;
using staged = test::staged_threads;

std::vector<std::uint32_t> shuffled(std::size_t experts, std::uint64_t seed) {
  std::vector<std::uint32_t> made(experts);
  std::iota(made.begin(), made.end(), 0U);
  oracle::random numbers{seed};
  for (std::size_t i = experts; i > 1; --i) std::swap(made[i - 1], made[numbers.below(i)]);
  return made;
}

/// What each rank's experts make of its rows, physical expert p being logical expert `of[p]`.
template <class Rows>
void apply_experts(const Rows& rows, std::span<const std::uint32_t> of) {
  std::vector<float> values;
  for (const auto& expert : rows.experts()) {
    values.resize(expert.hidden());
    for (std::size_t row = 0; row < expert.count(); ++row) {
      expert.decode(row, values);
      oracle::apply(of[expert.id()], values, expert.output(row));
    }
  }
}

/// The same input through an exchange with a map, and, by physical numbers, through one without.
template <class Layout>
void check_map(auto& comm, const Layout& layout, std::uint64_t seed) {
  const oracle::shape of{comm.size(), 11, 32, 4};
  const auto logical = shuffled(of.experts, seed);
  exchange_config config{
      .experts = of.experts, .hidden = of.hidden, .top_k = of.top_k, .max_tokens = 9};
  exchange plain{comm, config, int8_per_token{}, layout};
  auto gone = logical;  // The caller's for the constructor only.
  config.physical_to_logical = gone;
  exchange mapped{comm, config, int8_per_token{}, layout};
  std::ranges::fill(gone, 0U);

  const std::size_t me = comm.rank().index();
  for (std::uint64_t round = 0; round < 4; ++round) {
    const auto mine =
        oracle::make_input(of, me, (me + round) % 10, oracle::routes::zipf, 64 * seed + round);
    auto physical = mine.experts;
    for (auto& id : physical)
      if (id != -1) id = mapped.placement().physical(static_cast<std::size_t>(id));
    const auto got = mapped.dispatch(mine.tokens, {mine.experts, mine.weights});
    const auto wanted = plain.dispatch(mine.tokens, {physical, mine.weights});
    std::vector<bf16> out(mine.tokens.size());
    const auto same_rows = [](const auto& a, const auto& b) {
      test::expect(std::ranges::equal(a.rows(), b.rows()), "the rows");
      test::expect(std::ranges::equal(std::as_bytes(a.scales()), std::as_bytes(b.scales())),
                   "the scales");
      for (std::size_t i = 0; i < a.count(); ++i)
        test::expect(a.origin(i) == b.origin(i), "the origin of row ", i);
    };
    if constexpr (std::same_as<Layout, peerbus::moe::rank_major>) {
      same_rows(got, wanted);
      for (std::size_t i = 0; i < got.count(); ++i)
        test::expect(std::ranges::equal(got.experts(i), wanted.experts(i)), "local experts");
      for (std::size_t e = 0; e < got.local_experts(); ++e)
        test::expect_equal(got.expert_id(e), logical[wanted.expert_id(e)], "an expert's number");
      mapped.combine(got, out);
    } else {
      for (std::size_t e = 0; e < got.experts().size(); ++e) {
        same_rows(got.experts()[e], wanted.experts()[e]);
        test::expect_equal(got.experts()[e].id(), logical[wanted.experts()[e].id()],
                           "an expert's number");
        test::expect(mapped.placement().owner(got.experts()[e].id()) == comm.rank(), "its owner");
      }
      test::run_experts(got);
      mapped.combine(got, out);
      test::expect(out == oracle::combined<int8_per_token>(of, mine), "the outputs");
      apply_experts(wanted, logical);
    }
    plain.combine(wanted, out);
  }
}

template <class Group>
void check_maps() {
  for (const std::size_t ranks : {1U, 2U, 3U, 4U, 8U, 13U}) {
    CAPTURE(ranks);
    const int worst_status = Group::run(ranks, [](auto& comm) {
      for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        check_map(comm, peerbus::moe::compact{}, seed);
        check_map(comm, peerbus::moe::compact{.alignment = 4}, seed);
        check_map(comm, peerbus::moe::padded{}, seed);
        check_map(comm, peerbus::moe::rank_major{}, seed);
      }
    });
    CHECK(worst_status == 0);
  }
}

}  // namespace

TEST_CASE("experts in any order, by stores") { check_maps<direct>(); }

TEST_CASE("experts in any order, by puts") { check_maps<staged>(); }

TEST_CASE("a map says who holds whom") {
  const std::vector<std::uint32_t> logical{4, 0, 3, 1, 2};
  const exchange_config config{
      .experts = 5, .hidden = 16, .top_k = 1, .max_tokens = 1, .physical_to_logical = logical};
  const peerbus::moe::expert_map map{config, 2};
  CHECK(map.count(rank_id{0}) == 3);
  CHECK(map.first(rank_id{1}) == 3);
  CHECK(std::ranges::equal(map.held_by(rank_id{0}), std::vector{4U, 0U, 3U}));
  CHECK(std::ranges::equal(map.held_by(rank_id{1}), std::vector{1U, 2U}));
  CHECK(map.owner(4) == rank_id{0});
  CHECK(map.owner(2) == rank_id{1});
  CHECK(map.physical(2) == 4);
  const peerbus::moe::expert_map more_ranks{{.experts = 1}, 3};
  CHECK(more_ranks.held_by(rank_id{0}).size() == 1);
  CHECK(more_ranks.held_by(rank_id{2}).empty());
}

TEST_CASE("maps that are none, or that differ between ranks, are refused on all ranks") {
  const int worst_status = direct::run(3, [](auto& comm) {
    exchange_config config{.experts = 4, .hidden = 16, .top_k = 2, .max_tokens = 3};
    const auto refused = [&](errc code, auto says, const std::vector<std::uint32_t>& logical) {
      config.physical_to_logical = logical;
      test::expect_error(code, {says}, [&] { exchange moe{comm, config, int8_per_token{}}; });
    };
    refused(errc::invalid_argument,
            "physical_to_logical has 3 entries, expected none or at least experts, 4", {0, 1, 2});
    refused(errc::invalid_argument, "physical_to_logical[2] is 4, expected 0 to 3", {0, 1, 4, 2});
    refused(errc::invalid_argument, "physical_to_logical lacks expert 3, expected each expert at",
            {0, 1, 2, 1});
    refused(errc::mismatch, "physical_to_logical[0] is 0 on rank 0 but 1 on rank 1",
            comm.rank().index() == 1 ? std::vector{1U, 0U, 2U, 3U} : std::vector{0U, 1U, 2U, 3U});
    // Given in order or left out: the same.
    const std::vector<std::uint32_t> in_order{0, 1, 2, 3};
    config.physical_to_logical = {};
    if (comm.rank().index() == 1) config.physical_to_logical = in_order;
    exchange moe{comm, config, int8_per_token{}};
  });
  CHECK(worst_status == 0);
}

}  // namespace expert_map_test
