// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <latch>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/compat/cann.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>

#include "deep_ep/cann_suite.hpp"
#include "support/groups.hpp"
#include "support/ranks.hpp"

namespace cann_refusals_test {

// What CANN's operators are given wrongly: every rank is told, nothing has happened, and the next
// call works.

namespace {

namespace cann = peerbus::cann;
using oracle::cann::world;
using peerbus::bf16;
using peerbus::errc;
using peerbus::codec::int8_per_token;
using direct = test::direct_threads;
using staged = test::staged_threads;
using fragments = std::initializer_list<std::string_view>;

constexpr std::size_t max_tokens = 4;

world small() {
  return {.ranks = 2, .hidden = 16, .top_k = 2, .moe = 4, .zero = 1, .copy = 1, .constant = 2};
}

/// Two ranks with a batch dispatched and one to dispatch; rank 1 does something wrong.
template <class Group = direct>
class bench {
 public:
  using codec = int8_per_token;
  using arguments = cann::dispatch_arguments;
  using combine_arguments = cann::combine_arguments<codec>;

  /// `spoil(arguments)` makes rank 1's dispatch bad; its memory is its own.
  static void dispatch(errc code, fragments texts, const std::function<void(arguments&)>& spoil) {
    run([&](auto& operators, auto& me, const auto& batch, std::size_t rank) {
      const auto& mine = batch.inputs[rank];
      arguments given{.x = mine.x, .expert_ids = mine.ids};
      if (rank == 1) {
        spoil(given);
        test::expect_error(code, texts, [&] { static_cast<void>(operators.dispatch(given)); });
      } else {
        test::expect_error(errc::refused, {"dispatch", "rank 1"},
                           [&] { static_cast<void>(operators.dispatch(given)); });
      }
      me.finish(me.dispatch(batch), batch);
    });
  }

  /// `spoil(arguments)` makes rank 1's combine bad.
  static void combine(errc code, fragments texts,
                      const std::function<void(combine_arguments&)>& spoil, world of = small()) {
    run(
        [&](auto& operators, auto& me, const auto& batch, std::size_t rank) {
          const auto got = me.dispatch(batch);
          std::vector<bf16> out(batch.inputs[rank].x.size(), bf16::from_bits(0xdead));
          auto given = me.arguments(got, batch);
          given.out = out;
          if (rank == 1) {
            spoil(given);
            test::expect_error(code, texts, [&] { operators.combine(given); });
          } else {
            test::expect_error(errc::refused, {"combine", "rank 1"},
                               [&] { operators.combine(given); });
          }
          for (const bf16 value : out)
            test::expect_equal(value.bits, 0xdead, "out of a refused combine");
          me.finish(got, batch);
        },
        of);
  }

  /// `body(operators, user, batch, rank)` on two ranks; the batch has 3 tokens on each, no masks.
  template <class Body>
  static void run(Body body, const world& of = small(), std::size_t in_flight = 1) {
    const int worst_status = Group::run(of.ranks, [&](auto& comm) {
      auto attributes = cann_suite::attributes_of(of, max_tokens);
      attributes.in_flight = in_flight;
      cann::moe_distribute operators{comm, attributes, codec{}};
      cann_suite::batch batch{{}, 1};
      for (std::size_t r = 0; r < of.ranks; ++r)
        batch.inputs.push_back(
            oracle::cann::make_input(of, r, 3, oracle::cann::masks::none, of.shared_ranks == 0, 7));
      const std::size_t rank = comm.rank().index();
      cann_suite::user<decltype(operators), codec> me{operators, of, rank};
      body(operators, me, batch, rank);
    });
    CHECK(worst_status == 0);
  }
};

const std::vector<std::int32_t> few_ints(4);
const std::vector<float> few_floats(4);
std::vector<std::int64_t> few_longs(4);

}  // namespace

TEST_CASE_TEMPLATE("a dispatch with bad arguments", Group, direct, staged) {
  using on = bench<Group>;
  using arguments = cann::dispatch_arguments;
  constexpr errc bad = errc::invalid_argument;
  constexpr errc no = errc::unsupported;
  on::dispatch(no, {"scales has 4 values", "expected none"},
               [](arguments& given) { given.scales = few_floats; });
  on::dispatch(no, {"expert_scales has 4 values", "expected none", "combine"},
               [](arguments& given) { given.expert_scales = few_floats; });
  on::dispatch(no, {"elastic_info has 4 values", "expected none"},
               [](arguments& given) { given.elastic_info = few_ints; });
  on::dispatch(bad, {"performance_info has 4 values", "expected none or one per rank, 2"},
               [](arguments& given) { given.performance_info = few_longs; });
  on::dispatch(bad, {"expert_token_nums_type is 2", "0 for prefix sums or 1 for counts"},
               [](arguments& given) { given.expert_token_nums_type = 2; });

  std::vector<bf16> x(80);
  std::vector<std::int32_t> ids;
  on::dispatch(bad, {"x has 47 values", "multiple of H, 32"},
               [&](arguments& given) { given.x = given.x.first(47); });
  on::dispatch(bad, {"x is null but 48"},
               [](arguments& given) { given.x = {static_cast<const bf16*>(nullptr), 48}; });
  on::dispatch(bad, {"x has 5 tokens", "at most max_tokens, 4"},
               [&](arguments& given) { given.x = x; });
  on::dispatch(bad, {"expert_ids has 5 values", "Bs x K, 6"},
               [](arguments& given) { given.expert_ids = given.expert_ids.first(5); });
  on::dispatch(bad, {"expert_ids is null but 6"}, [](arguments& given) {
    given.expert_ids = {static_cast<const std::int32_t*>(nullptr), 6};
  });
  for (const std::int32_t id : {-1, 8}) {
    ids = {0, 1, 2, 3, 4, id};
    on::dispatch(bad, {"expert_ids has ", id < 0 ? "-1" : "8", "at token 2, slot 1", "0 to 7"},
                 [&](arguments& given) { given.expert_ids = ids; });
  }
  for (const std::int32_t id : {2, 4, 6}) {  // A MoE, a zero and a constant expert.
    ids = {0, 1, id, id, 4, 5};
    on::dispatch(bad, {"again at token 1, slot 1", "different experts"},
                 [&](arguments& given) { given.expert_ids = ids; });
  }
  const bool late[] = {true, false, true};
  on::dispatch(bad, {"x_active_mask is true for token 2 after false for token 1"},
               [&](arguments& given) { given.x_active_mask = late; });
  const bool four[] = {true, true, true, true};
  on::dispatch(bad, {"x_active_mask has 4 values", "none, Bs, 3, or Bs x K, 6"},
               [&](arguments& given) { given.x_active_mask = four; });
}

TEST_CASE_TEMPLATE("a combine with bad arguments", Group, direct, staged) {
  using on = bench<Group>;
  using arguments = typename on::combine_arguments;
  constexpr errc bad = errc::invalid_argument;
  constexpr errc no = errc::unsupported;
  on::combine(no, {"tp_send_counts has 4", "expected none"},
              [](arguments& given) { given.tp_send_counts = few_ints; });
  on::combine(no, {"activation_scale has 4", "expected none"},
              [](arguments& given) { given.activation_scale = few_floats; });
  on::combine(no, {"weight_scale has 4", "expected none"},
              [](arguments& given) { given.weight_scale = few_floats; });
  on::combine(no, {"group_list has 4", "expected none"},
              [](arguments& given) { given.group_list = few_longs; });
  on::combine(no, {"expand_scales has 4", "expected none"},
              [](arguments& given) { given.expand_scales = few_floats; });
  on::combine(no, {"elastic_info has 4", "expected none"},
              [](arguments& given) { given.elastic_info = few_ints; });
  on::combine(bad, {"performance_info has 4", "expected none or one per rank, 2"},
              [](arguments& given) { given.performance_info = few_longs; });
  on::combine(no, {"out_dtype is 1", "expected 0"}, [](arguments& given) { given.out_dtype = 1; });
  on::combine(no, {"comm_quant_mode is 2", "expected 0"},
              [](arguments& given) { given.comm_quant_mode = 2; });
  on::combine(no, {"group_list_type is 1", "expected 0"},
              [](arguments& given) { given.group_list_type = 1; });

  on::combine(bad, {"out has 32 values", "Bs x H of the dispatch, 48"},
              [](arguments& given) { given.out = given.out.first(32); });
  on::combine(bad, {"out is null but 48"},
              [](arguments& given) { given.out = {static_cast<bf16*>(nullptr), 48}; });
  on::combine(bad, {"expand_x has 1 values", "A x H of the dispatch, "},
              [](arguments& given) { given.expand_x = given.shared_expert_x.first(1); });
  on::combine(bad, {"expert_scales has 5 values", "Bs x K of the dispatch, 6"},
              [](arguments& given) { given.expert_scales = given.expert_scales.first(5); });
  on::combine(bad, {"shared_expert_x has 16 values", "Bs x H of the dispatch, 48"},
              [](arguments& given) { given.shared_expert_x = given.shared_expert_x.first(16); });
  on::combine(bad, {"ori_x is empty", "48", "copy and constant experts"},
              [](arguments& given) { given.ori_x = {}; });
  on::combine(bad, {"ori_x has 47 values", "48"},
              [](arguments& given) { given.ori_x = given.ori_x.first(47); });
  on::combine(
      bad, {"const_expert_alpha_1 has 1 values", "const_expert_num, 2"},
      [](arguments& given) { given.const_expert_alpha_1 = given.const_expert_alpha_1.first(1); });
  on::combine(bad, {"const_expert_alpha_2 has 32 values", "const_expert_num, 2"},
              [](arguments& given) { given.const_expert_alpha_2 = given.const_expert_v; });
  on::combine(bad, {"const_expert_v has 31 values", "const_expert_num x H, 32"},
              [](arguments& given) { given.const_expert_v = given.const_expert_v.first(31); });

  std::vector<std::int32_t> ids(6, 77);
  on::combine(bad, {"combine's expert_ids has 77 at token 0, slot 0", "as dispatch"},
              [&](arguments& given) { given.expert_ids = ids; });
  on::combine(bad, {"combine's expert_ids has 5 values", "6"},
              [&](arguments& given) { given.expert_ids = std::span{ids}.first(5); });
  const bool two[] = {true, true, false};
  on::combine(bad, {"combine's x_active_mask differs", "token 2, slot 0"},
              [&](arguments& given) { given.x_active_mask = two; });
  on::combine(bad, {"x_active_mask has 2 values"},
              [&](arguments& given) { given.x_active_mask = std::span{two}.first(2); });
}

TEST_CASE("shared_expert_x where tokens go to shared experts, constants where there are none") {
  using on = bench<direct>;
  using arguments = on::combine_arguments;
  const std::vector<bf16> rows(48);
  on::combine(errc::invalid_argument,
              {"shared_expert_x", "shared_expert_rank_num is 1", "expected 0"},
              [&](arguments& given) { given.shared_expert_x = rows; },
              {.ranks = 2, .hidden = 16, .top_k = 2, .moe = 4, .shared = 1, .shared_ranks = 1});
  on::combine(errc::invalid_argument, {"const_expert_v has 48 values", "const_expert_num x H, 0"},
              [&](arguments& given) { given.const_expert_v = rows; },
              {.ranks = 2, .hidden = 16, .top_k = 2, .moe = 4});
}

TEST_CASE("all ranks wrong at once, each in its own way") {
  bench<direct>::run([](auto& operators, auto& me, const auto& batch, std::size_t rank) {
    cann::dispatch_arguments given{.x = batch.inputs[rank].x, .expert_ids = batch.inputs[rank].ids};
    if (rank == 0) given.scales = few_floats;
    if (rank == 1) given.expert_token_nums_type = 5;
    const errc code = rank == 0 ? errc::unsupported : errc::invalid_argument;
    test::expect_error(code, {rank == 0 ? "scales" : "expert_token_nums_type"},
                       [&] { static_cast<void>(operators.dispatch(given)); });
    me.finish(me.dispatch(batch), batch);
  });
}

TEST_CASE("results that are not to be combined") {
  const auto arguments_of = [](auto& me, const auto& got, const auto& batch, std::span<bf16> out) {
    auto given = me.arguments(got, batch);
    given.out = out;
    return given;
  };
  bench<direct>::run(
      [&](auto& operators, auto& me, const auto& batch, std::size_t rank) {
        std::vector<bf16> out(batch.inputs[rank].x.size());
        const auto first = me.dispatch(batch);
        const auto second = me.dispatch(batch);
        const auto third = me.dispatch(batch);
        // Neither may have its outputs written: those of the first belong to the third, and those
        // of the second may still be read by others.
        const std::vector<bf16> outputs(third.expert_out.size(), bf16{99.0F});
        test::expect(!outputs.empty(), "rows on both ranks");
        const auto expect_refusal = [&](const auto& got, fragments texts) {
          const std::vector<bf16> before(got.expert_out.begin(), got.expert_out.end());
          auto given = arguments_of(me, got, batch, out);
          given.expand_x = outputs;
          test::expect_error(errc::invalid_argument, texts, [&] { operators.combine(given); });
          test::expect(std::ranges::equal(before, got.expert_out), "outputs to stay");
        };
        expect_refusal(first, {"dispatch 1", "dispatch 3", "replaced"});
        me.finish(third, batch);
        me.finish(second, batch);
        expect_refusal(second, {"dispatch 2", "combined already"});
        for (int again = 0; again < 2; ++again) {
          operators.reopen(second);
          me.finish(second, batch);
        }
        operators.reopen(second);
        operators.reopen(second);  // It is open.
        me.finish(second, batch);
        test::expect_error(errc::invalid_argument, {"dispatch 1", "dispatch 3", "replaced"},
                           [&] { operators.reopen(first); });
      },
      small(), 2);

  // Of other operators.
  const world of = small();
  const int worst_status = direct::run(of.ranks, [&](auto& comm) {
    const auto attributes = cann_suite::attributes_of(of, max_tokens);
    cann::moe_distribute one{comm, attributes, int8_per_token{}};
    cann::moe_distribute other{comm, attributes, int8_per_token{}};
    const auto got = one.dispatch({});
    test::expect_error(errc::invalid_argument, {"another exchange"},
                       [&] { other.combine({.dispatched = got}); });
    one.combine({.dispatched = got,
                 .const_expert_alpha_1 = std::vector<bf16>(2),
                 .const_expert_alpha_2 = std::vector<bf16>(2),
                 .const_expert_v = std::vector<bf16>(32)});
  });
  CHECK(worst_status == 0);
}

TEST_CASE("one rank gives another result than the others") {
  bench<direct>::run(
      [&](auto& operators, auto& me, const auto& batch, std::size_t rank) {
        const bool differs = rank == 1;
        std::vector<bf16> out(batch.inputs[rank].x.size(), bf16::from_bits(0xdead));
        const auto combine = [&](const auto& got) {
          auto given = me.arguments(got, batch);
          given.out = out;
          operators.combine(given);
        };
        const auto refused_for = [&](std::string_view why, auto&& call) {
          test::expect_error(differs ? errc::invalid_argument : errc::refused, {why}, call);
          for (const bf16 value : out)
            test::expect_equal(value.bits, 0xdead, "out of a refused combine");
        };
        const auto first = me.dispatch(batch);
        const auto second = me.dispatch(batch);
        const auto third = me.dispatch(batch);
        refused_for("has replaced", [&] { combine(differs ? first : third); });
        refused_for("has replaced", [&] { combine(differs ? first : second); });
        for (int again = 0; again < 2; ++again) {
          test::expect_error(
              errc::mismatch,
              {"combine: dispatched is of call ", " of the operators on rank 0 but of "},
              [&] { combine(differs ? second : third); });
          me.finish(second, batch);
          refused_for("combined already", [&] { combine(differs ? second : third); });
          me.finish(third, batch);
          // One rank reopens what is too old. The others may find theirs open.
          refused_for("has replaced", [&] { operators.reopen(differs ? first : second); });
          operators.reopen(second);
          operators.reopen(third);
        }
        me.finish(third, batch);
        me.finish(second, batch);
        me.finish(me.dispatch(batch), batch);
      },
      small(), 2);
}

TEST_CASE("a refused dispatch leaves the one before to be combined") {
  bench<direct>::run([](auto& operators, auto& me, const auto& batch, std::size_t rank) {
    const auto got = me.dispatch(batch);
    cann::dispatch_arguments given{.x = batch.inputs[rank].x, .expert_ids = batch.inputs[rank].ids};
    if (rank == 1) given.expert_ids = {};
    if (rank == 1)
      test::expect_error(errc::invalid_argument, {"expert_ids has 0 values"},
                         [&] { static_cast<void>(operators.dispatch(given)); });
    else
      test::expect_error(errc::refused, {"rank 1"},
                         [&] { static_cast<void>(operators.dispatch(given)); });
    me.finish(got, batch);
  });
}

TEST_CASE("performance_info has the wait for a rank that is missing when a call fails") {
  for (const bool in_combine : {false, true}) {
    CAPTURE(in_combine);
    std::latch done{1};
    bench<direct>::run([&](auto& operators, auto& me, const auto& batch, std::size_t rank) {
      std::optional<cann::dispatch_result<int8_per_token>> got;
      if (in_combine) got = me.dispatch(batch);
      if (rank == 1) return done.wait();
      std::vector<std::int64_t> waited{1, 1};
      std::vector<bf16> out(batch.inputs[0].x.size());
      const auto until = peerbus::deadline::after(std::chrono::milliseconds{50});
      test::expect_error(errc::timed_out, {": waited ", "rank 1 ("}, [&] {
        if (!in_combine)
          return static_cast<void>(operators.dispatch({.x = batch.inputs[0].x,
                                                       .expert_ids = batch.inputs[0].ids,
                                                       .performance_info = waited,
                                                       .until = until}));
        auto given = me.arguments(*got, batch);
        given.out = out;
        given.performance_info = waited;
        given.until = until;
        operators.combine(given);
      });
      done.count_down();
      test::expect_equal(waited[0], 1, "what rank 0 waited for itself");
      test::expect(waited[1] > 1, "the wait for the missing rank");
    });
  }
}

}  // namespace cann_refusals_test
