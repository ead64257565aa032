// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep/buffer.hpp>
#include <peerbus/transport/any_transport.hpp>

#include "deep_ep/elastic_suite.hpp"
#include "deep_ep/expanded_suite.hpp"
#include "support/groups.hpp"
#include "support/ranks.hpp"

namespace expanded_threads_test {

namespace {
using group = test::direct_threads;
using expanded::deep_ep::elastic_buffer;
namespace deep_ep = peerbus::deep_ep;
using peerbus::bf16;
using peerbus::errc;
}  // namespace

namespace {

/// Tokens for 4 experts, and the arguments of a dispatch of them.
struct four_tokens {
  std::vector<bf16> x = std::vector<bf16>(4 * 128);
  std::vector<std::int64_t> idx{0, 1, 2, 3, 0, 2, 1, 3};
  std::vector<float> w = std::vector<float>(8, 1.0F);

  [[nodiscard]] deep_ep::elastic_dispatch_args args() const {
    return {.x = deep_ep::view(x, {4, 128}),
            .topk_idx = deep_ep::view(idx, {4, 2}),
            .topk_weights = deep_ep::view(w, {4, 2}),
            .num_experts = 4};
  }
};

}  // namespace

TEST_CASE("the expanded form, threads") { expanded::run_all<group>(); }
TEST_CASE("engram, pp and agrs, threads") { elastic::run_all<group>(); }

TEST_CASE("what the expanded form refuses") {
  const int status = group::run(2, [](auto& comm) {
    using buffer = elastic_buffer<peerbus::any_transport>;
    test::expect_error(errc::unsupported, {"allow_multiple_reduction", "expected false"},
                       [&] { buffer made(comm, {.allow_multiple_reduction = true}); });
    test::expect_error(errc::invalid_argument, {"in_flight is 0"},
                       [&] { buffer made(comm, {.in_flight = 0}); });
    buffer one{comm, {.num_max_tokens_per_rank = 4}};
    buffer other{comm, {.num_max_tokens_per_rank = 4}};
    const four_tokens given;
    const auto good = given.args();
    const auto refused = [&](errc code, std::initializer_list<std::string_view> texts,
                             auto&& change) {
      auto args = good;
      change(args);
      test::expect_error(code, texts, [&] { static_cast<void>(one.dispatch(args)); });
    };
    refused(errc::unsupported, {"do_expand", "buffer::dispatch"},
            [](auto& args) { args.do_expand = false; });
    refused(errc::unsupported, {"use_tma_aligned_col_major_sf"},
            [](auto& args) { args.use_tma_aligned_col_major_sf = true; });
    refused(errc::unsupported, {"num_sms", "expected 0"}, [](auto& args) { args.num_sms = 24; });
    refused(errc::unsupported, {"num_qps", "expected 0"}, [](auto& args) { args.num_qps = 9; });
    refused(errc::unsupported, {"allocate_on_comm_stream"},
            [](auto& args) { args.allocate_on_comm_stream = true; });
    refused(errc::invalid_argument, {"num_max_tokens_per_rank is 0, expected 1 to 4294967295"},
            [](auto& args) { args.num_max_tokens_per_rank = 0; });
    refused(errc::invalid_argument, {"x has 4 tokens, expected at most num_max_tokens_per_rank, 3"},
            [](auto& args) { args.num_max_tokens_per_rank = 3; });
    refused(errc::invalid_argument, {"x is int64 [4, 2]", "expected bfloat16"},
            [&](auto& args) { args.x = deep_ep::view(given.idx, {4, 2}); });
    refused(errc::invalid_argument, {"topk_idx is int64 [8, 1]", "[4, any]"},
            [&](auto& args) { args.topk_idx = deep_ep::view(given.idx, {8, 1}); });
    refused(errc::invalid_argument, {"topk_weights is float32 [8, 1]"},
            [&](auto& args) { args.topk_weights = deep_ep::view(given.w, {8, 1}); });
    refused(errc::invalid_argument, {"alignment is 0"},
            [](auto& args) { args.expert_alignment = 0; });

    const auto got = one.dispatch(good);
    const std::size_t rows = got.handle.num_expanded_tokens;
    const std::vector<bf16> y(rows * 128, bf16{1.0F});
    const deep_ep::elastic_combine_args back{.x = deep_ep::view(y, {rows, 128}),
                                             .handle = got.handle};
    test::expect_error(errc::invalid_argument, {"handle is of another buffer"},
                       [&] { static_cast<void>(other.combine(back)); });
    test::expect_error(errc::invalid_argument, {"handle is none"},
                       [&] { static_cast<void>(one.combine({.x = back.x})); });
    deep_ep::elastic_dispatch_args cached{.x = good.x, .handle = got.handle};
    const auto refused_beside_handle = [&](std::string_view text, auto&& change) {
      auto args = cached;
      change(args);
      test::expect_error(errc::invalid_argument, {text},
                         [&] { static_cast<void>(one.dispatch(args)); });
    };
    refused_beside_handle("topk_idx was given beside a handle",
                          [&](auto& args) { args.topk_idx = good.topk_idx; });
    refused_beside_handle("do_cpu_sync is true beside a handle",
                          [](auto& args) { args.do_cpu_sync = true; });
    refused_beside_handle("num_experts is 8 beside a handle, expected none or its 4",
                          [](auto& args) { args.num_experts = 8; });
    refused_beside_handle("expert_alignment is 2 beside a handle, expected none or its 1",
                          [](auto& args) { args.expert_alignment = 2; });
    refused_beside_handle("num_max_tokens_per_rank is 5 beside a handle, expected none or its 4",
                          [](auto& args) { args.num_max_tokens_per_rank = 5; });
    refused_beside_handle("handle is of 4 tokens, expected x's 3", [&](auto& args) {
      args.x = {given.x.data(), deep_ep::dtype::bfloat16, {3, 128}};
    });
    test::expect_error(errc::invalid_argument, {"handle is of another buffer"},
                       [&] { static_cast<void>(other.dispatch(cached)); });
    auto short_x = back;
    short_x.x = deep_ep::const_tensor{y.data(), deep_ep::dtype::bfloat16, {rows - 1, 128}};
    test::expect_error(errc::invalid_argument, {"combine: x is bfloat16"},
                       [&] { static_cast<void>(one.combine(short_x)); });
    for (int i = 0; i < 3; ++i) {
      const auto sums = one.combine(back).combined_x;
      for (std::size_t t = 0; t < 4; ++t) {
        const auto rows_of_token =
            std::count_if(given.idx.begin() + static_cast<std::ptrdiff_t>(2 * t),
                          given.idx.begin() + static_cast<std::ptrdiff_t>(2 * t + 2),
                          [](std::int64_t id) { return id >= 0; });
        test::expect(sums.template as<bf16>()[t * 128] == bf16{static_cast<float>(rows_of_token)},
                     "combine ", i, ", token ", t);
      }
    }
    // Rows of another size than the dispatch's.
    const std::vector<bf16> wide(rows * 256, bf16{1.0F});
    const auto sums =
        one.combine({.x = deep_ep::view(wide, {rows, 256}), .handle = got.handle}).combined_x;
    test::expect_equal(sums.size(1), 256U, "hidden");
    test::expect(sums.template at<bf16>(0, 255) == bf16{2.0F}, "two rows of the first token");
    // An expert that does not exist, on one rank: refused on both, and the buffer goes on.
    auto wrong = good;
    std::vector<std::int64_t> bad = given.idx;
    bad[3] = 4;
    const bool mine = comm.rank().index() == 1;
    if (mine) wrong.topk_idx = deep_ep::view(bad, {4, 2});
    test::expect_error(mine ? errc::invalid_argument : errc::refused,
                       {"expert id 4 at token 1, slot 1"},
                       [&] { static_cast<void>(one.dispatch(wrong)); });
    static_cast<void>(
        one.combine({.x = deep_ep::view(y, {rows, 128}), .handle = one.dispatch(good).handle}));
  });
  CHECK(status == 0);
}

TEST_CASE("ranks that call the two forms in turn, and differ in which") {
  const int status = group::run(3, [](auto& comm) {
    deep_ep::buffer by_rank{comm, {.num_max_tokens_per_rank = 4}};
    elastic_buffer<peerbus::any_transport> expanded{comm, {.num_max_tokens_per_rank = 4}};
    const bool differs = comm.rank().index() == 2;
    const four_tokens given;
    const auto dispatch_by_rank = [&] {
      const auto ids = deep_ep::view(given.idx, {4, 2});
      const auto counts = by_rank.get_dispatch_layout(ids, 4);
      return by_rank.dispatch({.x = deep_ep::view(given.x, {4, 128}),
                               .num_tokens_per_rank = counts.num_tokens_per_rank,
                               .is_token_in_rank = counts.is_token_in_rank,
                               .num_tokens_per_expert = counts.num_tokens_per_expert,
                               .topk_idx = ids,
                               .topk_weights = deep_ep::view(given.w, {4, 2})});
    };
    const auto mismatch = [&](std::string_view text, auto&& call) {
      test::expect_error(errc::mismatch, {text}, call);
    };
    for (int round = 0; round < 3; ++round) {
      mismatch("do_expand is false on rank 0 but true on rank 2", [&] {
        if (differs) return by_rank.call_other_form();
        static_cast<void>(dispatch_by_rank());
      });
      const auto rows = dispatch_by_rank();
      mismatch("do_expand is true on rank 0 but false on rank 2", [&] {
        if (!differs) return by_rank.call_other_form();
        static_cast<void>(by_rank.combine({.x = rows.recv_x, .handle = rows.handle}));
      });
      by_rank.call_other_form();
      mismatch("do_expand is true on rank 0 but false on rank 2", [&] {
        if (differs) return expanded.call_other_form();
        static_cast<void>(expanded.dispatch(given.args()));
      });
      const auto more = expanded.dispatch(given.args());
      expanded.call_other_form();
      static_cast<void>(by_rank.combine({.x = rows.recv_x, .handle = rows.handle}));
      by_rank.call_other_form();
      static_cast<void>(expanded.combine({.x = more.recv_x, .handle = more.handle}));
      if (comm.rank().index() == 1)
        expanded.refuse(peerbus::error{errc::invalid_argument, "no weights"});
      else
        test::expect_error(errc::refused, {"no weights"}, [&] { expanded.call_other_form(); });
      expanded.call_other_form();
    }
  });
  CHECK(status == 0);
}

TEST_CASE("what ranks of the expanded form give differently, or one of them wrongly") {
  const int status = group::run(3, [](auto& comm) {
    elastic_buffer<peerbus::any_transport> buffer{comm, {.num_max_tokens_per_rank = 4}};
    const bool differs = comm.rank().index() == 1;
    const four_tokens given;
    const auto good = given.args();
    const auto call = [&](errc code, std::string_view text, auto&& change) {
      static_cast<void>(buffer.dispatch(good));
      auto args = good;
      if (differs) change(args);
      test::expect_error(code, {text}, [&] { static_cast<void>(buffer.dispatch(args)); });
    };
    const auto mismatch = [&](std::string_view text, auto&& change) {
      call(errc::mismatch, text, change);
    };
    const auto bad = [&](std::string_view text, auto&& change) {
      call(differs ? errc::invalid_argument : errc::refused, text, change);
    };
    mismatch("topk_weights is given on rank 0 but none on rank 1",
             [](auto& args) { args.topk_weights = {}; });
    mismatch("num_topk is 2 on rank 0 but 1 on rank 1", [](auto& args) {
      args.x = {args.x.data(), deep_ep::dtype::bfloat16, {0, 128}};
      args.topk_idx = {args.topk_idx.data(), deep_ep::dtype::int64, {0, 1}};
      args.topk_weights = {args.topk_weights.data(), deep_ep::dtype::float32, {0, 1}};
    });
    mismatch("num_experts is 4 on rank 0 but 5 on rank 1",
             [](auto& args) { args.num_experts = 5; });
    mismatch("expert_alignment is 1 on rank 0 but 8 on rank 1",
             [](auto& args) { args.expert_alignment = 8; });
    mismatch("do_zero_padding is false on rank 0 but true on rank 1",
             [](auto& args) { args.do_zero_padding = true; });
    bad("x is int64 [4, 2]", [&](auto& args) { args.x = deep_ep::view(given.idx, {4, 2}); });
    bad("expected at most num_max_tokens_per_rank, 3",
        [](auto& args) { args.num_max_tokens_per_rank = 3; });
    mismatch("num_max_tokens_per_rank is 0 on rank 0 but 5 on rank 1",
             [](auto& args) { args.num_max_tokens_per_rank = 5; });

    const auto earlier = buffer.dispatch(good);
    const auto got = buffer.dispatch(good);
    // Handles of different dispatches, or a handle on one rank alone.
    test::expect_error(
        errc::mismatch, {"handle is of call ", "on rank 0 but of call ", "on rank 1"}, [&] {
          static_cast<void>(
              buffer.dispatch({.x = good.x, .handle = differs ? earlier.handle : got.handle}));
        });
    deep_ep::elastic_dispatch_args one_by_handle = good;
    one_by_handle.topk_weights = {};
    if (differs) one_by_handle.topk_idx = {};
    if (differs) one_by_handle.handle = got.handle;
    test::expect_error(errc::mismatch, {"handle is none on rank 0 but of call "},
                       [&] { static_cast<void>(buffer.dispatch(one_by_handle)); });
    // A handle for another number of tokens, on one rank.
    deep_ep::elastic_dispatch_args short_of_one{.x = good.x, .handle = got.handle};
    if (differs) short_of_one.x = {good.x.data(), deep_ep::dtype::bfloat16, {0, 128}};
    test::expect_error(differs ? errc::invalid_argument : errc::refused, {"handle is of 4 tokens"},
                       [&] { static_cast<void>(buffer.dispatch(short_of_one)); });
    const std::size_t rows = got.handle.num_expanded_tokens;
    const std::vector<bf16> y(rows * 128, bf16{1.0F});
    deep_ep::elastic_combine_args back{.x = deep_ep::view(y, {rows, 128}), .handle = got.handle};
    const auto right = back;
    if (differs) back.x = {y.data(), deep_ep::dtype::float8_e4m3fn, {rows, 128}};
    test::expect_error(differs ? errc::invalid_argument : errc::refused,
                       {"combine: x is float8_e4m3fn"},
                       [&] { static_cast<void>(buffer.combine(back)); });
    static_cast<void>(buffer.combine(right));

    // Handles of different dispatches in a combine, before and after combines of both.
    const auto fourth = buffer.dispatch(good);
    const auto fifth = buffer.dispatch(good);
    auto other = right;
    for (int i = 0; i < 2; ++i) {
      other.handle = differs ? fifth.handle : fourth.handle;
      test::expect_error(
          errc::mismatch,
          {"combine: handle is of call ", "on rank 0 but of call ", "on rank 1, expected"},
          [&] { static_cast<void>(buffer.combine(other)); });
      for (const auto& handle : {fourth.handle, fifth.handle, earlier.handle}) {
        other.handle = handle;
        static_cast<void>(buffer.combine(other));
      }
    }
  });
  CHECK(status == 0);
}

TEST_CASE("more tokens of one rank than the expanded form has memory for") {
  for (const std::size_t ranks : {1U, 2U, 4U}) {
    const int status = group::run(ranks, [](auto& comm) {
      elastic_buffer<peerbus::any_transport> buffer{comm, {.num_max_tokens_per_rank = 4}};
      const std::size_t rank = comm.rank().index();
      const std::size_t experts = comm.size() + 1;
      const auto round = [&](std::size_t count, std::optional<std::size_t> bound) {
        std::vector<bf16> x(count * 128);
        std::vector<std::int64_t> ids(count);
        for (std::size_t t = 0; t < count; ++t) {
          ids[t] = static_cast<std::int64_t>((t + rank) % experts);
          std::fill_n(x.begin() + static_cast<std::ptrdiff_t>(t * 128), 128,
                      bf16{static_cast<float>(t + 32 * rank)});
        }
        const auto got = buffer.dispatch({.x = deep_ep::view(x, {count, 128}),
                                          .topk_idx = deep_ep::view(ids, {count, 1}),
                                          .num_experts = experts,
                                          .num_max_tokens_per_rank = bound});
        const std::size_t most = got.handle.num_max_tokens_per_rank;
        const auto& sources = got.handle.recv_src_metadata;
        for (std::size_t i = 0; i < sources.size(0); ++i) {
          const auto number = static_cast<std::size_t>(sources.template at<std::int32_t>(i, 0));
          const auto row = static_cast<std::size_t>(sources.template at<std::int32_t>(i, 2));
          test::expect(got.recv_x.template as<bf16>()[row * 128] ==
                           bf16{static_cast<float>(number % most + 32 * (number / most))},
                       "row of token ", number);
        }
        const auto home = buffer.combine({.x = got.recv_x, .handle = got.handle});
        test::expect(std::equal(x.begin(), x.end(), home.combined_x.template as<bf16>()), "sums");
        return most;
      };
      const bool is_last = rank == comm.size() - 1;
      const std::size_t few = rank == 0 && !is_last ? 0 : 3;
      test::expect_equal(round(few, {}), std::size_t{4}, "the first room");
      test::expect_equal(round(is_last ? 5 : few, {}), std::size_t{8}, "more for one rank");
      test::expect_equal(round(few, {}), std::size_t{8}, "no less afterwards");
      test::expect_equal(round(is_last ? 12 : few, 20), std::size_t{20}, "a bound");
      test::expect_equal(round(few, 3), std::size_t{3}, "a smaller one");
      test::expect_equal(round(is_last ? 31 : few, {}), std::size_t{32}, "the room of the bound");
    });
    CHECK(status == 0);
  }
}

}  // namespace expanded_threads_test
