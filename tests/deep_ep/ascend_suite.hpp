// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep/ascend_buffer.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>

#include "deep_ep/deep_ep_oracle.hpp"
#include "support/ranks.hpp"

/// The low-latency calls in the layout of CANN's operators, for any group of ranks.
namespace ascend {

using oracle::deep_ep::batch;
using oracle::deep_ep::pattern;
using oracle::deep_ep::problem;
using peerbus::bf16;
namespace deep_ep = peerbus::deep_ep;

inline constexpr std::size_t most_tokens = 12;

/// A token: different for each, in halves and quarters that bf16 holds.
inline float value_of(std::size_t source, std::size_t token, std::size_t channel) {
  return (static_cast<float>((source * 131 + token * 17 + channel * 19) % 257) - 128.0F) / 64.0F;
}
inline bf16 output_of(std::size_t expert, std::size_t source, std::size_t token, std::size_t h) {
  return bf16{value_of(source, token, h) * (1.0F + 0.125F * static_cast<float>(expert))};
}

template <class Transport>
void check_dispatch(const problem& p, std::size_t rank, bool use_fp8,
                    const deep_ep::ascend_dispatch_result& got, std::vector<bf16>& y) {
  const std::size_t hidden = p.of.hidden;
  const std::size_t local = oracle::deep_ep::local_experts(p, rank);
  const std::size_t first = oracle::deep_ep::first_expert(p, rank);
  test::expect_equal(got.recv_x.dims(), std::size_t{2}, "dimensions of recv_x");
  test::expect_equal(got.recv_x.size(0), p.of.ranks * most_tokens * std::min(p.of.top_k, local),
                     "rows that recv_x has room for");
  test::expect_equal(got.recv_count.size(0), local, "counts");
  y.assign(got.recv_x.size(0) * hidden, bf16{});
  std::size_t at = 0;
  std::int32_t so_far = 0;
  for (std::size_t e = 0; e < local; ++e) {
    const std::size_t begin = at;
    for (std::size_t source = 0; source < p.of.ranks; ++source) {
      for (std::size_t t = 0; t < p.ranks[source].tokens; ++t)
        for (std::size_t k = 0; k < p.of.top_k; ++k) {
          if (p.ranks[source].ids[t * p.of.top_k + k] != static_cast<std::int64_t>(first + e))
            continue;
          const auto triple = [&](std::size_t i) {
            return static_cast<std::size_t>(got.handle.expand_idx.at<std::int32_t>(at, i));
          };
          test::expect_equal(triple(0), source, "source of row ", at);
          test::expect_equal(triple(1), t, "token of row ", at);
          test::expect_equal(triple(2), k, "slot of row ", at);
          float largest = 0;
          for (std::size_t h = 0; h < hidden; ++h)
            largest = std::max(largest, std::abs(value_of(source, t, h)));
          if (use_fp8)
            test::expect_equal(got.recv_x_scales.at<float>(at), largest / 127.0F, "scale of row ",
                               at);
          for (std::size_t h = 0; h < hidden; ++h) {
            const float value = value_of(source, t, h);
            if (use_fp8)
              test::expect_equal(int{got.recv_x.at<std::int8_t>(at, h)},
                                 static_cast<int>(std::nearbyint(value * (127.0F / largest))),
                                 "row ", at, ", channel ", h);
            else
              test::expect_equal(got.recv_x.at<bf16>(at, h).bits, bf16{value}.bits, "row ", at,
                                 ", channel ", h);
            y[at * hidden + h] = output_of(first + e, source, t, h);
          }
          ++at;
          ++so_far;
        }
      test::expect_equal(got.handle.ep_recv_counts.at<std::int32_t>(e * p.of.ranks + source),
                         so_far, "rows of local experts 0 to ", e, " up to rank ", source);
    }
    test::expect_equal(got.recv_count.at<std::int64_t>(e), static_cast<std::int64_t>(at - begin),
                       "rows of local expert ", e);
  }
}

inline void check_combined(const problem& p, std::size_t rank, const deep_ep::tensor& combined) {
  const auto& mine = p.ranks[rank];
  for (std::size_t t = 0; t < mine.tokens; ++t)
    for (std::size_t h = 0; h < p.of.hidden; ++h) {
      float sum = 0;
      for (std::size_t k = 0; k < p.of.top_k; ++k) {
        const std::size_t slot = t * p.of.top_k + k;
        if (mine.ids[slot] < 0) continue;
        sum = std::fma(
            mine.weights[slot],
            static_cast<float>(output_of(static_cast<std::size_t>(mine.ids[slot]), rank, t, h)),
            sum);
      }
      test::expect_equal(combined.at<bf16>(t, h).bits, bf16{sum}.bits, "token ", t, ", channel ",
                         h);
    }
}

template <class Group>
void run_one(const oracle::shape& of, pattern routes, batch sizes) {
  using transport = typename Group::transport;
  CAPTURE(of.ranks);
  const int status = Group::run(of.ranks, [&](auto& comm) {
    const std::size_t rank = comm.rank().index();
    deep_ep::ascend_buffer<transport> buffer{
        comm,
        {.target = deep_ep::profile::ascend_a3, .target_is = {.moe_enable_topk_neg_one = true}}};
    for (std::uint64_t seed = 1; seed <= 3; ++seed)
      for (const bool use_fp8 : {true, false}) {
        const problem p = oracle::deep_ep::make_problem(of, routes, sizes, most_tokens, seed);
        const auto& mine = p.ranks[rank];
        std::vector<bf16> x;
        for (std::size_t t = 0; t < mine.tokens; ++t)
          for (std::size_t h = 0; h < of.hidden; ++h) x.push_back(bf16{value_of(rank, t, h)});
        const auto ids = deep_ep::view(mine.ids, {mine.tokens, of.top_k});
        const auto got =
            buffer.low_latency_dispatch({.x = deep_ep::view(x, {mine.tokens, of.hidden}),
                                         .topk_idx = ids,
                                         .num_max_dispatch_tokens_per_rank = most_tokens,
                                         .num_experts = of.experts,
                                         .use_fp8 = use_fp8});
        std::vector<bf16> y;
        check_dispatch<transport>(p, rank, use_fp8, got, y);
        for (int again = 0; again < 3; ++again) {
          const auto back = buffer.low_latency_combine(
              {.x = deep_ep::view(y, {got.recv_x.size(0), of.hidden}),
               .topk_idx = ids,
               .topk_weights = deep_ep::view(mine.weights, {mine.tokens, of.top_k}),
               .handle = got.handle});
          check_combined(p, rank, back.combined_x);
        }
      }
  });
  CHECK(status == 0);
}

/// Arguments that differ between ranks, or that one rank alone gives wrongly, before the first call
/// of a shape and after it: refused on all ranks at once. The next call works.
template <class Group>
void check_differing(std::size_t ranks) {
  CAPTURE(ranks);
  const int status = Group::run(ranks, [](auto& comm) {
    using peerbus::errc;
    deep_ep::ascend_buffer<typename Group::transport> buffer{comm};
    const std::size_t rank = comm.rank().index();
    const std::size_t experts = 4 * comm.size();
    const std::size_t tokens = rank == 0 ? 0 : 2;  // Rank 0 has none.
    const std::vector<bf16> x(2 * 2048, bf16{1.0F});
    const std::vector<std::int64_t> ids{0, 1, 2, 3};
    const std::vector<float> weights(4, 0.5F);
    const auto x_of = [&](std::size_t hidden) {
      return deep_ep::const_tensor{x.data(), deep_ep::dtype::bfloat16, {tokens, hidden}};
    };
    const auto ids_of = [&](std::size_t top_k) {
      return deep_ep::const_tensor{ids.data(), deep_ep::dtype::int64, {tokens, top_k}};
    };
    const deep_ep::ascend_dispatch_args good{.x = x_of(1024),
                                             .topk_idx = ids_of(2),
                                             .num_max_dispatch_tokens_per_rank = 4,
                                             .num_experts = experts};
    const auto home = [&](const deep_ep::ascend_dispatch_result& got, const bf16* rows) {
      return deep_ep::ascend_combine_args{
          .x = {rows, deep_ep::dtype::bfloat16, {got.recv_x.size(0), 1024}},
          .topk_idx = ids_of(2),
          .topk_weights = {weights.data(), deep_ep::dtype::float32, {tokens, 2}},
          .handle = got.handle};
    };
    for (const std::size_t culprit : {comm.size() - 1, std::size_t{0}}) {
      const auto differing = [&](std::string_view says, auto&& change) {
        auto args = good;
        if (rank == culprit) change(args);
        test::expect_error(errc::mismatch, {says, "on rank 0 but ", "expected the same"},
                           [&] { static_cast<void>(buffer.low_latency_dispatch(args)); });
      };
      const auto wrong = [&](std::string_view says, auto&& change) {
        auto args = good;
        if (rank == culprit) change(args);
        test::expect_error(rank == culprit ? errc::invalid_argument : errc::refused, {says},
                           [&] { static_cast<void>(buffer.low_latency_dispatch(args)); });
      };
      for (int round = 0; round < 2; ++round) {
        differing("num_max_dispatch_tokens_per_rank is ",
                  [](auto& args) { args.num_max_dispatch_tokens_per_rank = 8; });
        differing("hidden is ", [&](auto& args) { args.x = x_of(2048); });
        differing("num_experts is ", [&](auto& args) { args.num_experts = 2 * experts; });
        differing("num_topk is ", [&](auto& args) { args.topk_idx = ids_of(1); });
        differing("use_fp8 is ", [](auto& args) { args.use_fp8 = false; });
        wrong("x is none", [](auto& args) { args.x = {}; });
        wrong("num_experts is ", [&](auto& args) { args.num_experts = experts + 1; });

        const auto got = buffer.low_latency_dispatch(good);
        const std::vector<bf16> rows(got.recv_x.size(0) * 1024, bf16{1.0F});
        const auto back = home(got, rows.data());
        for (int again = 0; again < 2; ++again) {
          auto bad = back;
          if (rank == culprit) bad.x = {rows.data(), deep_ep::dtype::int8, {rows.size(), 1}};
          test::expect_error(rank == culprit ? errc::invalid_argument : errc::refused,
                             {"x is int8"},
                             [&] { static_cast<void>(buffer.low_latency_combine(bad)); });
          const auto combined = buffer.low_latency_combine(back).combined_x;
          for (std::size_t i = 0; i < tokens * 1024; ++i)
            test::expect(combined.template as<bf16>()[i] == bf16{1.0F}, "sum ", i);
        }
        if (rank == culprit) {
          test::expect_error(errc::mismatch, {"expected the same"},
                             [&] { static_cast<void>(buffer.low_latency_combine(back)); });
        } else {
          auto other = good;  // The others state it, because it is new.
          other.num_max_dispatch_tokens_per_rank = 5;
          test::expect_error(errc::mismatch, {"expected the same"},
                             [&] { static_cast<void>(buffer.low_latency_dispatch(other)); });
        }
        static_cast<void>(buffer.low_latency_combine(back));
      }
    }
  });
  CHECK(status == 0);
}

template <class Group>
void run_all() {
  for (const std::size_t ranks : {2U, 3U, 4U}) check_differing<Group>(ranks);
  run_one<Group>({2, 8, 1024, 3}, pattern::uniform, batch::full);
  run_one<Group>({3, 6, 1024, 4}, pattern::holes, batch::uneven);
  run_one<Group>({4, 16, 2048, 8}, pattern::zipf, batch::full);
}

}  // namespace ascend
