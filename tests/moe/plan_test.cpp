// SPDX-License-Identifier: MIT
// ctest: tsan
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/plan/copy_order.hpp>
#include <peerbus/moe/plan/count_table.hpp>
#include <peerbus/moe/plan/expert_router.hpp>
#include <peerbus/moe/plan/recv_plan.hpp>
#include <peerbus/moe/plan/refusal.hpp>
#include <peerbus/moe/plan/send_plan.hpp>
#include <peerbus/moe/routing.hpp>

#include "support/layout_oracle.hpp"
#include "support/oracle.hpp"

namespace plan_test {

using peerbus::bf16;
using peerbus::rank_id;
using peerbus::moe::exchange_config;
using peerbus::moe::refusal;
using peerbus::moe::refusal_reason;
using peerbus::moe::routing;
using peerbus::moe::send_plan;

namespace {

/// What one rank plans of a dispatch.
struct rank_plan {
  rank_plan(const exchange_config& config, const peerbus::moe::block_geometry& geometry,
            std::size_t rank, std::size_t ranks)
      : leaving{config, geometry,
                std::make_shared<const peerbus::moe::expert_router>(config, rank_id{rank}, ranks),
                rank_id{rank}, ranks},
        arriving{geometry, rank_id{rank}, ranks},
        order{config, geometry, ranks} {}

  void place(const peerbus::moe::count_table& counts) {
    leaving.place(counts);
    arriving.place(counts);
  }

  send_plan leaving;
  peerbus::moe::recv_plan arriving;
  peerbus::moe::copy_order order;
};

/// The copies in the order of their places, against the same found by comparing all places.
void check_sorted(rank_plan& of, std::size_t ranks) {
  const send_plan& plan = of.leaving;
  peerbus::moe::copy_order& order = of.order;
  order.sort(plan);
  std::vector<std::uint32_t> wanted;
  const std::size_t copies = plan.geometry().copies_per_token;
  for (std::size_t t = 0; t < plan.tokens(); ++t)
    for (std::size_t slot = 0; slot < copies; ++slot)
      if (plan.places(t)[slot].sent())
        wanted.push_back(static_cast<std::uint32_t>(t * copies + slot));
  const auto place = [&](std::uint32_t copy) { return plan.places(copy / copies)[copy % copies]; };
  std::sort(wanted.begin(), wanted.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair{place(a).rank, place(a).row} < std::pair{place(b).rank, place(b).row};
  });
  CHECK(std::equal(wanted.begin(), wanted.end(), order.all().begin(), order.all().end()));
  std::size_t end = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto range = order.to(rank_id{r});
    CHECK(range.begin == end);
    for (; end < wanted.size() && place(wanted[end]).rank == r; ++end)
      CHECK(plan.place_of(wanted[end]).row == place(wanted[end]).row);
    CHECK(range.end == end);
  }
}

/// What each plan has counted, side by side.
struct all_counts {
  std::vector<std::uint32_t> numbers;
  std::size_t blocks = 0;

  explicit all_counts(const std::vector<rank_plan>& plans) {
    for (const rank_plan& plan : plans) {
      blocks = plan.leaving.counts().size();
      numbers.insert(numbers.end(), plan.leaving.counts().begin(), plan.leaving.counts().end());
    }
  }
  [[nodiscard]] peerbus::moe::count_table table() const {
    return {std::as_bytes(std::span{numbers}).data(), blocks * sizeof(std::uint32_t),
            sizeof(std::uint32_t)};
  }
};

}  // namespace

// All ranks of a group planned side by side, against the rows that the oracle lists.
TEST_CASE("a plan puts every row where (expert, source rank, token) order has it") {
  oracle::random numbers{42};
  for (int trial = 0; trial < 120; ++trial) {
    CAPTURE(trial);
    const std::size_t experts = 1 + numbers.below(24);
    const oracle::shape shape{1 + numbers.below(9), experts, 8,
                              1 + numbers.below(std::min<std::size_t>(experts, 6))};
    const exchange_config config{
        .experts = experts, .hidden = 8, .top_k = shape.top_k, .max_tokens = 7};
    const auto kind = static_cast<oracle::routes>(numbers.below(5));
    std::vector<rank_plan> plans;
    const auto geometry = peerbus::moe::compact{}.geometry(config, shape.ranks);
    for (std::size_t r = 0; r < shape.ranks; ++r)
      plans.emplace_back(config, geometry, r, shape.ranks);

    // Twice over: nothing of an earlier dispatch may remain.
    for (std::uint64_t round = 0; round < 2; ++round) {
      std::vector<oracle::input> inputs;
      for (std::size_t r = 0; r < shape.ranks; ++r) {
        inputs.push_back(oracle::make_input(shape, r, numbers.below(8), kind, numbers.next()));
        const routing route{inputs[r].experts, inputs[r].weights};
        REQUIRE_FALSE(plans[r].leaving.count(inputs[r].tokens, route));
      }
      const all_counts counted{plans};
      for (std::size_t r = 0; r < shape.ranks; ++r) plans[r].place(counted.table());

      const auto owners = oracle::owners(shape);
      std::vector<std::uint32_t> next_row(shape.ranks);
      std::vector<std::vector<std::vector<std::uint32_t>>> blocks(shape.ranks);
      for (std::size_t e = 0; e < experts; ++e) {
        const auto rows = oracle::rows_of(shape, inputs, e);
        for (std::size_t r = 0; r < shape.ranks; ++r) {
          const auto from_r = std::count_if(rows.begin(), rows.end(),
                                            [r](const auto& row) { return row.rank == r; });
          CHECK(plans[r].leaving.counts()[e] == static_cast<std::uint32_t>(from_r));
        }
        std::size_t row = 0;
        blocks[owners[e]].emplace_back();
        for (std::size_t source = 0; source < shape.ranks; ++source) {
          blocks[owners[e]].back().push_back(next_row[owners[e]]);
          for (; row < rows.size() && rows[row].rank == source; ++row) {
            const std::size_t token = rows[row].token;
            const auto slots =
                std::span{inputs[source].experts}.subspan(token * shape.top_k, shape.top_k);
            const auto slot = static_cast<std::size_t>(
                std::find(slots.begin(), slots.end(), static_cast<std::int64_t>(e)) -
                slots.begin());
            const auto place = plans[source].leaving.places(token)[slot];
            CHECK(place.sent());
            CHECK(place.rank == owners[e]);
            CHECK(place.row == next_row[owners[e]]++);
            CHECK(plans[source].leaving.factors(token)[slot] ==
                  inputs[source].weights[token * shape.top_k + slot]);
          }
        }
        blocks[owners[e]].back().push_back(next_row[owners[e]]);
      }
      for (std::size_t r = 0; r < shape.ranks; ++r) {
        check_sorted(plans[r], shape.ranks);
        CHECK(plans[r].leaving.tokens() == inputs[r].count);
        CHECK(plans[r].arriving.end() == next_row[r]);
        for (std::size_t b = 0; b < blocks[r].size(); ++b) {
          const auto arrivals = plans[r].arriving.of(b);
          CHECK(std::equal(arrivals.begin(), arrivals.end(), blocks[r][b].begin(),
                           blocks[r][b].end()));
        }
        for (std::size_t slot = 0; slot < inputs[r].experts.size(); ++slot)
          if (inputs[r].experts[slot] == -1)
            CHECK_FALSE(plans[r].leaving.places(slot / shape.top_k)[slot % shape.top_k].sent());
      }
    }
  }
}

namespace {

/// A plan per rank, all of them placed, for random inputs.
struct planned_group {
  oracle::shape shape;
  std::vector<oracle::input> inputs;
  std::vector<rank_plan> plans;

  template <class Layout>
  planned_group(oracle::random& numbers, const oracle::shape& of, const Layout& layout)
      : shape{of} {
    const exchange_config config{
        .experts = of.experts, .hidden = of.hidden, .top_k = of.top_k, .max_tokens = most_tokens};
    const auto kind = static_cast<oracle::routes>(numbers.below(5));
    for (std::size_t r = 0; r < of.ranks; ++r) {
      inputs.push_back(
          oracle::make_input(of, r, numbers.below(most_tokens + 1), kind, numbers.next()));
      plans.emplace_back(config, layout.geometry(config, of.ranks), r, of.ranks);
      REQUIRE_FALSE(
          plans[r].leaving.count(inputs[r].tokens, {inputs[r].experts, inputs[r].weights}));
    }
    const all_counts counted{plans};
    for (rank_plan& plan : plans) {
      plan.place(counted.table());
      check_sorted(plan, of.ranks);
    }
  }

  [[nodiscard]] std::size_t copies_sent() const {
    std::size_t sent = 0;
    for (std::size_t r = 0; r < plans.size(); ++r)
      for (std::size_t t = 0; t < inputs[r].count; ++t)
        for (const auto& place : plans[r].leaving.places(t)) sent += place.sent() ? 1 : 0;
    return sent;
  }
  void check_place(const oracle::placed& row, std::size_t at, std::size_t expected) const {
    const auto place = plans[row.rank].leaving.places(row.token)[row.slot];
    CHECK(place.rank == at);
    CHECK(place.row == expected);
  }

  static constexpr std::size_t most_tokens = 7;
};

oracle::shape random_shape(oracle::random& numbers) {
  const std::size_t experts = 1 + numbers.below(24);
  return {1 + numbers.below(9), experts, 8, 1 + numbers.below(std::min<std::size_t>(experts, 6))};
}

template <class Layout>
void check_expert_major(oracle::random& numbers, const Layout& layout, oracle::expert_major rule) {
  const oracle::shape shape = random_shape(numbers);
  if (rule.rows_of_expert != 0) rule.rows_of_expert = shape.ranks * planned_group::most_tokens;
  const planned_group group{numbers, shape, layout};
  std::size_t rows = 0;
  for (std::size_t r = 0; r < shape.ranks; ++r) {
    std::size_t end = 0;
    std::size_t local = 0;
    for (const auto& block : oracle::blocks_of(shape, group.inputs, r, rule)) {
      for (std::size_t i = 0; i < block.rows.size(); ++i)
        group.check_place(block.rows[i], r, block.first_row + i);
      const auto arrivals = group.plans[r].arriving.of(local++);
      CHECK(arrivals.front() == block.first_row);
      CHECK(arrivals.back() == block.first_row + block.rows.size());
      end = block.first_row + block.padded;
      rows += block.rows.size();
    }
    CHECK(group.plans[r].arriving.end() == end);
    CHECK(end <= group.plans[r].leaving.geometry().row_capacity);
  }
  CHECK(group.copies_sent() == rows);
}

}  // namespace

TEST_CASE("aligned and padded layouts start experts where they say") {
  oracle::random numbers{7};
  for (int trial = 0; trial < 60; ++trial) {
    CAPTURE(trial);
    for (const std::size_t alignment : {2U, 7U, 128U})
      check_expert_major(numbers, peerbus::moe::compact{.alignment = alignment}, {alignment, 0});
    check_expert_major(numbers, peerbus::moe::padded{}, {1, 1});
  }
}

TEST_CASE("rank-major: a row per token and rank, with the slots of that rank") {
  oracle::random numbers{11};
  for (int trial = 0; trial < 120; ++trial) {
    CAPTURE(trial);
    const oracle::shape shape = random_shape(numbers);
    const planned_group group{numbers, shape, peerbus::moe::rank_major{}};
    std::size_t rows = 0;
    for (std::size_t r = 0; r < shape.ranks; ++r) {
      const auto wanted = oracle::tokens_at(shape, group.inputs, r);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        const oracle::placed& from = wanted[i].from;
        group.check_place(from, r, i);
        const send_plan& plan = group.plans[from.rank].leaving;
        CHECK(plan.factors(from.token)[from.slot] == 1.0F);
        std::vector<std::int32_t> experts(shape.top_k);
        std::vector<float> weights(shape.top_k);
        plan.describe(from.token, rank_id{r}, std::as_writable_bytes(std::span{experts}).data(),
                      std::as_writable_bytes(std::span{weights}).data());
        CHECK(experts == wanted[i].experts);
        CHECK(weights == wanted[i].weights);
      }
      CHECK(group.plans[r].arriving.end() == wanted.size());
      rows += wanted.size();
    }
    CHECK(group.copies_sent() == rows);
  }
}

TEST_CASE("routing views 32 and 64 bit ids alike") {
  const std::vector<std::int32_t> narrow{3, -1, 0, 7};
  const std::vector<std::int64_t> wide{3, -1, 0, 7};
  const std::vector<float> weights{1, 2, 3, 4};
  const routing a{narrow, weights};
  const routing b{wide, weights};
  CHECK(a.size() == 4);
  CHECK(b.size() == 4);
  CHECK(a.weights().data() == weights.data());
  for (std::size_t slot = 0; slot < 4; ++slot) {
    CHECK(a.expert(slot) == wide[slot]);
    CHECK(b.expert(slot) == wide[slot]);
  }
  CHECK_FALSE(a.null());
  CHECK(
      routing{std::span<const std::int32_t>{static_cast<const std::int32_t*>(nullptr), 2}, weights}
          .null());
  CHECK(
      routing{std::span<const std::int64_t>{static_cast<const std::int64_t*>(nullptr), 2}, weights}
          .null());
  CHECK_FALSE(routing{std::span<const std::int64_t>{}, {}}.null());
}

TEST_CASE("ids outside are refused, or count as -1") {
  const std::vector<std::int64_t> ids{0, -2, 5, 3, std::int64_t{1} << 40, -1};
  const std::vector<std::int64_t> plain{0, -1, -1, 3, -1, -1};
  const std::vector<bf16> tokens(std::size_t{3} * 16);
  const std::vector<float> weights(6, 1.0F);
  exchange_config config{.experts = 5, .hidden = 16, .top_k = 2, .max_tokens = 3};
  const auto counted = [&](std::span<const std::int64_t> given, bool by_rank) {
    const auto geometry = by_rank ? peerbus::moe::rank_major{}.geometry(config, 2)
                                  : peerbus::moe::compact{}.geometry(config, 2);
    rank_plan plan{config, geometry, 0, 2};
    const refusal found = plan.leaving.count(std::span{tokens}, {given, weights});
    const auto counts = plan.leaving.counts();
    return std::pair{found.reason, std::vector<std::uint32_t>{counts.begin(), counts.end()}};
  };
  for (const bool by_rank : {false, true}) {
    config.other_ids = peerbus::moe::ids_outside::refused;
    CHECK(counted(ids, by_rank).first == refusal_reason::expert_out_of_range);
    const auto expected = counted(plain, by_rank);
    CHECK(expected.first == refusal{}.reason);
    config.other_ids = peerbus::moe::ids_outside::skipped;
    CHECK(counted(ids, by_rank) == expected);
  }
}

TEST_CASE("describe says what was given and what was expected") {
  const auto text = [](refusal_reason reason, std::int64_t given, std::int64_t expected) {
    return describe(refusal{reason, 3, 1, 0, given, expected});
  };
  CHECK(text(refusal_reason::null_tokens, 5, 0) == "tokens that are null but 5 values long");
  CHECK(text(refusal_reason::too_many_tokens, 129, 128) ==
        "129 tokens, expected at most max_tokens, 128");
  CHECK(text(refusal_reason::expert_out_of_range, -7, 64) ==
        "expert id -7 at token 3, slot 1, expected -1 or 0 to 63");
  CHECK(text(refusal_reason::expert_repeated, 9, 64) ==
        "expert id 9 again at token 3, slot 1, expected different experts within a token");
  CHECK(text(refusal_reason::attachment_size, 4, 6) ==
        "attachment 1 of 4 bytes, expected tokens x configured, 6");
  // Every reason has a text of its own, and so does one that a newer peer might send.
  std::vector<std::string> texts;
  for (std::uint32_t reason = 0; reason <= 13; ++reason)
    texts.push_back(text(static_cast<refusal_reason>(reason), 1, 2));
  std::sort(texts.begin(), texts.end());
  CHECK(std::adjacent_find(texts.begin(), texts.end()) == texts.end());
  CHECK_FALSE(refusal{});
}

}  // namespace plan_test
