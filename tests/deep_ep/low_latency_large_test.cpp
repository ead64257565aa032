// SPDX-License-Identifier: MIT
// ctest: timeout=400
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/fp8.hpp>
#include <peerbus/transport/any_transport.hpp>

#include "deep_ep/low_latency_oracle.hpp"
#include "deep_ep/low_latency_suite.hpp"
#include "support/groups.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace low_latency_large_test {

// Where DeepEP has limits (top_k 11, 511 or 1024 tokens, a list of hidden sizes), and memory that
// is mostly never touched.

namespace {

using namespace low_latency_suite;
using group = test::direct_threads;

void check(const world& of, std::uint64_t seed) {
  check_worlds<group>(std::vector<world>{of, of}, seed);
}

}  // namespace

TEST_CASE("low latency: every top_k from 1 to 32") {
  for (const std::size_t ranks : {1U, 3U}) {
    std::vector<world> all;
    for (std::size_t k = 1; k <= 32; ++k) {
      world of{.ranks = ranks, .experts = 32 + k % 3, .hidden = 128, .top_k = k, .max_tokens = 3};
      of.rows = all_formats[k % 4];
      of.routes = k % 2 == 0 ? ways::holes : ways::uniform;
      all.push_back(of);
    }
    check_worlds<group>(all, 90 + ranks);
  }
}

TEST_CASE("low latency: the hidden sizes of models") {
  for (const std::size_t hidden : {2048U, 2560U, 2880U, 3584U, 4096U, 5120U, 6144U, 7168U, 8192U}) {
    world of{.ranks = 2, .experts = 8, .hidden = hidden, .top_k = 4, .max_tokens = 3};
    check(of, hidden);
    of.rows = hidden % 3 == 0 ? format::fp8 : format::ue8m0;
    if (hidden % 128 == 0) check(of, hidden + 1);
  }
}

TEST_CASE("low latency: 512 tokens and more") {
  for (const std::size_t tokens : {511U, 512U, 513U, 1023U, 1024U, 1025U}) {
    world of{.ranks = 2, .experts = 6, .hidden = 128, .top_k = 2, .max_tokens = tokens};
    of.rows = tokens % 2 == 0 ? format::fp8 : format::bf16;
    // Also all of them to one rank.
    of.routes = tokens % 3 == 0 ? ways::one_rank : ways::uniform;
    check(of, tokens);
  }
  // Counts of more than 16 bits.
  check({.ranks = 1, .experts = 1, .hidden = 8, .top_k = 1, .max_tokens = 70'000}, 4);
}

TEST_CASE("low latency: rows beyond 4 GiB") {
  // 64 experts x 2 x 2400 rows of 14 KiB on each rank, most of them never touched.
  const world of{.ranks = 2, .experts = 128, .hidden = 7168, .top_k = 16, .max_tokens = 2400};
  world few = of;
  few.max_tokens = 8;
  batch from = make_batch(few, 6);
  from.of = of;
  with_buffers<group>(of.ranks, {.in_flight = 1}, [&](auto& buffer, auto& comm) {
    const std::size_t rank = comm.rank().index();
    const auto& mine = from.inputs[rank];
    const auto ids = deep_ep::view(mine.experts, {mine.count, of.top_k});
    const auto got =
        buffer.low_latency_dispatch({.x = deep_ep::view(mine.tokens, {mine.count, of.hidden}),
                                     .topk_idx = ids,
                                     .num_max_dispatch_tokens_per_rank = of.max_tokens,
                                     .num_experts = of.experts,
                                     .use_fp8 = false});
    check_shapes(got, from, rank);
    check_rows(got, from, rank);
    const auto rows = static_cast<std::size_t>(got.recv_count.template at<std::int32_t>(63));
    test::expect(rows != 0, "rows of the last expert");
    // The experts write over what they got.
    const auto experts = experts_of(of, rank);
    for (std::size_t e = 0; e < experts.size(); ++e)
      for (std::size_t i = 0;
           i < static_cast<std::size_t>(got.recv_count.template at<std::int32_t>(e)); ++i)
        for (std::size_t h = 0; h < of.hidden; ++h) {
          bf16& value = got.recv_x.template at<bf16>(e, i, h);
          value = oracle::apply(experts[e], h, oracle::widen(value));
        }
    const auto back = buffer.low_latency_combine(
        {.x = got.recv_x,
         .topk_idx = ids,
         .topk_weights = deep_ep::view(mine.weights, {mine.count, of.top_k}),
         .handle = got.handle});
    const auto expected = combined(from, rank);
    const auto given = back.combined_x.template values<bf16>();
    for (std::size_t i = 0; i < expected.size(); ++i)
      test::expect_equal(given[i].bits, expected[i].bits, "sum ", i);
  });
}

TEST_CASE("low latency: the scales and codes of DeepEP's kernels, to the bit") {
  struct golden {
    float value;
    std::uint32_t scale;
    std::uint32_t exponent;  ///< biased
    int rounded_code;        ///< -1: not known
  };
  constexpr golden goldens[] = {
      {0, 0x346facad, 105, 0x00}, {0.5F, 0x3a924925, 118, -1},  {1, 0x3b124925, 119, -1},
      {3, 0x3bdb6db8, 120, -1},   {100, 0x3e64924a, 125, 0x7c}, {127, 0x3e912493, 126, 0x78},
      {128, 0x3e924925, 126, -1}, {448, 0x3f800000, 127, 0x7e}, {1000, 0x400edb6e, 129, -1}};
  constexpr std::size_t count = std::size(goldens);
  constexpr std::size_t hidden = 512;
  with_buffers<group>(1, {}, [&](auto& buffer, auto&) {
    std::vector<bf16> x;
    for (const golden& one : goldens)
      for (std::size_t h = 0; h < hidden; ++h)
        x.push_back(oracle::round(h % 2 == 0 ? one.value : -one.value));
    const std::vector<std::int32_t> ids(count, 0);
    for (const format rows : {format::fp8, format::rounded, format::ue8m0}) {
      const auto got = buffer.low_latency_dispatch({.x = deep_ep::view(x, {count, hidden}),
                                                    .topk_idx = deep_ep::view(ids, {count, 1}),
                                                    .num_max_dispatch_tokens_per_rank = count,
                                                    .num_experts = 1,
                                                    .round_scale = rows != format::fp8,
                                                    .use_ue8m0 = rows == format::ue8m0});
      for (std::size_t t = 0; t < count; ++t) {
        const golden& one = goldens[t];
        const int code = rows != format::fp8 ? one.rounded_code : one.value == 0 ? 0 : 0x7e;
        for (std::size_t h = 0; h < hidden && code != -1; ++h)
          test::expect_equal(got.recv_x.template at<peerbus::fp8_e4m3>(0, t, h).bits,
                             (h % 2 == 0 ? code : code | 0x80), "code of ", one.value);
        for (std::size_t group = 0; group < hidden / 128; ++group) {
          if (rows == format::ue8m0) {
            const auto word =
                static_cast<std::uint32_t>(got.recv_x_scales.template at<std::int32_t>(0, t));
            test::expect_equal(word >> (8 * group) & 0xffU, one.exponent, "UE8M0 of ", one.value);
          } else {
            const auto bits =
                std::bit_cast<std::uint32_t>(got.recv_x_scales.template at<float>(0, t, group));
            test::expect_equal(bits, rows == format::fp8 ? one.scale : one.exponent << 23U,
                               "scale of ", one.value);
          }
        }
      }
    }
  });
}

TEST_CASE("low latency: DeepEP's buffer size, to the byte") {
  using buffer = deep_ep::buffer<peerbus::any_transport>;
  struct golden {
    std::size_t tokens, hidden, ranks, experts, bytes;
  };
  for (const golden& one :
       {golden{128, 3072, 2, 288, 920127872}, golden{128, 7168, 8, 256, 1908410496},
        golden{128, 7168, 1, 256, 1908410496}, golden{128, 7168, 320, 288, 2146961792},
        golden{256, 7168, 8, 256, 3816818816}, golden{512, 7168, 8, 288, 8587839872},
        golden{1024, 7168, 8, 256, 15267268736}, golden{16, 5120, 8, 256, 170395776}}) {
    CAPTURE(one.tokens);
    CAPTURE(one.hidden);
    CAPTURE(one.experts);
    CHECK(buffer::get_low_latency_rdma_size_hint(one.tokens, one.hidden, one.ranks, one.experts) ==
          one.bytes);
  }
}

}  // namespace low_latency_large_test
