// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/compat/cann.hpp>
#include <peerbus/core/rank.hpp>

#include "deep_ep/cann_suite.hpp"
#include "support/groups.hpp"
#include "support/ranks.hpp"

namespace cann_shared_test {

// Shared experts, which have ranks of their own.

namespace {

using cann_suite::check;
using oracle::cann::world;
using peerbus::rank_id;
using peerbus::cann::deployment;
using peerbus::codec::int8_per_token;
using verbatim = peerbus::codec::bf16;
using direct = test::direct_threads;
using staged = test::staged_threads;

}  // namespace

TEST_CASE("one and two shared experts over one to four ranks") {
  struct shape {
    std::size_t shared;
    std::size_t shared_ranks;
    std::size_t moe_ranks;
  };
  for (const shape& one : {shape{1, 1, 1}, shape{1, 1, 2}, shape{1, 2, 1}, shape{1, 2, 2},
                           shape{2, 2, 1}, shape{2, 2, 2}, shape{2, 2, 3}, shape{1, 2, 3},
                           shape{1, 4, 1}, shape{1, 4, 4}, shape{2, 4, 1}, shape{2, 4, 4}}) {
    CAPTURE(one.shared);
    CAPTURE(one.shared_ranks);
    const world of{.ranks = one.shared_ranks + one.moe_ranks,
                   .top_k = 3,
                   .moe = one.moe_ranks * 3,
                   .shared = one.shared,
                   .shared_ranks = one.shared_ranks};
    check<direct, verbatim>(of, 6, 6);
    check<direct, int8_per_token>(of, 6, 4, 1, 40);
  }
}

TEST_CASE("four shared experts; K and one local expert; with special experts") {
  check<direct, verbatim>({.ranks = 5, .top_k = 4, .moe = 4, .shared = 4, .shared_ranks = 4}, 5, 4);
  check<direct, int8_per_token>({.ranks = 8,
                                 .top_k = 8,
                                 .moe = 8,
                                 .shared = 2,
                                 .shared_ranks = 4,
                                 .zero = 1,
                                 .copy = 1,
                                 .constant = 2},
                                5, 6);
  check<direct, verbatim>({.ranks = 3,
                           .top_k = 16,
                           .moe = 2,
                           .shared = 1,
                           .shared_ranks = 1,
                           .zero = 5,
                           .copy = 5,
                           .constant = 5},
                          5, 4);
}

TEST_CASE("three batches in flight, on both paths") {
  const world of{.ranks = 4, .top_k = 2, .moe = 4, .shared = 1, .shared_ranks = 2, .copy = 2};
  check<direct, verbatim>(of, 5, 9, 3);
  check<staged, int8_per_token>(of, 5, 9, 3);
}

TEST_CASE("each rank of a shared expert gets Bs x ranks x shared experts / their ranks rows") {
  const world of{.ranks = 8, .top_k = 2, .moe = 4, .shared = 2, .shared_ranks = 4};
  constexpr std::size_t tokens = 5;
  const int worst_status = direct::run(of.ranks, [&](auto& comm) {
    peerbus::cann::moe_distribute operators{comm, cann_suite::attributes_of(of, tokens),
                                            verbatim{}};
    const std::vector<peerbus::bf16> x(tokens * of.hidden);
    const std::vector<std::int32_t> ids{0, 1, 1, 2, 2, 3, 3, 0, 0, 2};
    const std::vector<float> scales(ids.size());
    const auto got = operators.dispatch({.x = x, .expert_ids = ids});
    if (comm.rank().index() < of.shared_ranks) {
      test::expect_equal(got.expand_x.size() / of.hidden,
                         tokens * of.ranks * of.shared / of.shared_ranks, "A");
      test::expect_equal(got.expert_token_nums.size(), 1U, "local experts");
      test::expect_equal(got.ep_recv_counts.size(), of.ranks, "counts");
    }
    std::vector<peerbus::bf16> out(x.size());
    operators.combine({.dispatched = got, .expert_scales = scales, .out = out});
  });
  CHECK(worst_status == 0);
}

TEST_CASE("which rank holds what") {
  constexpr deployment experts{{.top_k = 8,
                                .moe_expert_num = 12,
                                .shared_expert_num = 2,
                                .shared_expert_rank_num = 4,
                                .zero_expert_num = 3,
                                .copy_expert_num = 2,
                                .const_expert_num = 1},
                               8};
  static_assert(experts.slots() == 10 && experts.replicas() == 2 && experts.ids() == 18);
  static_assert(experts.numbers_per_rank() == 3 && experts.numbers() == 24);
  static_assert(experts.holds_shared(rank_id{3}) && !experts.holds_shared(rank_id{4}));
  static_assert(experts.local_experts(rank_id{3}) == 1 && experts.local_experts(rank_id{4}) == 3);
  static_assert(experts.first_expert(rank_id{1}) == 0 && experts.first_expert(rank_id{2}) == 1);
  static_assert(experts.first_expert(rank_id{4}) == 0 && experts.first_expert(rank_id{7}) == 9);
  // Numbers of the exchange: three a rank.
  static_assert(experts.number_of_moe(0) == 12 && experts.number_of_moe(11) == 23);
  static_assert(experts.number_of_shared(0, rank_id{4}) == 0);
  static_assert(experts.number_of_shared(0, rank_id{5}) == 3);
  static_assert(experts.number_of_shared(1, rank_id{5}) == 9);
  using peerbus::cann::expert_kind;
  static_assert(experts.kind(11) == expert_kind::moe && experts.kind(12) == expert_kind::zero);
  static_assert(experts.kind(15) == expert_kind::copy && experts.kind(17) == expert_kind::constant);
  // Fewer experts than a token has slots: numbers that nobody names fill up.
  constexpr deployment few{{.top_k = 5, .moe_expert_num = 2, .copy_expert_num = 3}, 2};
  static_assert(few.numbers_per_rank() == 3 && few.local_experts(rank_id{1}) == 1);
  static_assert(few.number_of_moe(1) == 3);
  CHECK(few.numbers() == 6);
}

}  // namespace cann_shared_test
