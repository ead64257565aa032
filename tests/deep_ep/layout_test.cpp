// SPDX-License-Identifier: MIT
// ctest: tsan
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep/buffer.hpp>
#include <peerbus/compat/deep_ep/elastic_buffer.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/config.hpp>

#include "deep_ep/deep_ep_oracle.hpp"
#include "deep_ep/normal_form.hpp"
#include "deep_ep/normal_round.hpp"
#include "support/groups.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace layout_test {

namespace {

using group = test::direct_threads;
using oracle::deep_ep::batch;
using oracle::deep_ep::pattern;
using peerbus::errc;
using peerbus::deep_ep::const_tensor;
using peerbus::deep_ep::dtype;

constexpr pattern patterns[]{pattern::uniform,  pattern::zipf, pattern::holes,
                             pattern::one_rank, pattern::hot,  pattern::nowhere};
constexpr batch batches[]{batch::full, batch::uneven, batch::one_rank, batch::none};

}  // namespace

TEST_CASE("get_dispatch_layout counts what loops count") {
  for (const std::size_t ranks : {1U, 2U, 3U, 5U, 6U, 7U, 8U}) {
    CAPTURE(ranks);
    const int worst_status = group::run(ranks, [](auto& comm) {
      peerbus::deep_ep::buffer buffer{comm};
      const std::size_t rank = comm.rank().index();
      std::uint64_t seed = 0;
      for (const pattern routes : patterns)
        for (const batch sizes : batches)
          for (const oracle::shape& of : {
                   oracle::shape{comm.size(), 8, 16, 2},
                   {comm.size(), 1, 16, 1},    // Most ranks have no expert.
                   {comm.size(), 13, 16, 13},  // Experts do not divide by ranks.
                   {comm.size(), 256, 16, 32},
               }) {
            const auto p = oracle::deep_ep::make_problem(of, routes, sizes, 40, ++seed);
            for (const bool narrow : {false, true}) {
              const normal::given mine{p, rank, {.narrow_ids = narrow}};
              const auto layout = buffer.get_dispatch_layout(mine.ids(), of.experts);
              normal::check_layout(layout, p, rank);
              layout.event.current_stream_wait();
            }
          }
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("get_dispatch_layout counts a token once per rank, an expert as often as it is named") {
  const int worst_status = group::run(2, [](auto& comm) {
    peerbus::deep_ep::buffer buffer{comm};
    // Rank 0 holds experts 0 to 2, rank 1 holds 3 and 4.
    const std::vector<std::int64_t> ids{0, 1, 2, -1, -1, -1, 4, -1, 0, 3, 4, 3};
    const auto got = buffer.get_dispatch_layout(peerbus::deep_ep::view(ids, {4, 3}), 5);
    const auto per_rank = got.num_tokens_per_rank.template values<std::int32_t>();
    test::expect_equal(per_rank[0], 2, "tokens for rank 0");
    test::expect_equal(per_rank[1], 2, "tokens for rank 1");
    const std::int32_t per_expert[]{2, 1, 1, 2, 2};
    const bool in_rank[]{true, false, false, false, true, true, false, true};
    for (std::size_t e = 0; e < 5; ++e)
      test::expect_equal(got.num_tokens_per_expert.template at<std::int32_t>(e), per_expert[e],
                         "expert ", e);
    for (std::size_t i = 0; i < 8; ++i)
      test::expect_equal(got.is_token_in_rank.template at<bool>(i / 2, i % 2), in_rank[i], "token ",
                         i / 2);
    // A layout keeps its memory, whatever comes next.
    const std::vector<std::int64_t> others(12, 1);
    static_cast<void>(buffer.get_dispatch_layout(peerbus::deep_ep::view(others, {4, 3}), 5));
    test::expect_equal(got.num_tokens_per_expert.template at<std::int32_t>(4), 2, "expert 4");
  });
  CHECK(worst_status == 0);
}

TEST_CASE("negative ids are passed over in every mode, by combine too") {
  const int worst_status = group::run(2, [](auto& comm) {
    namespace deep_ep = peerbus::deep_ep;
    deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = 4}};
    deep_ep::elastic_buffer expanded{comm, {.num_max_tokens_per_rank = 4}};
    const std::vector<peerbus::bf16> x(4 * 128, peerbus::bf16{3.0F});
    const std::vector<float> weights(8, 0.5F);
    const auto tokens = deep_ep::view(x, {4, 128});
    const auto factors = deep_ep::view(weights, {4, 2});
    constexpr auto lowest = std::numeric_limits<std::int64_t>::min();
    const std::vector<std::int64_t> plain{0, -1, -1, 3, -1, -1, 2, 1};
    const std::vector<std::int64_t> others{0, -2, lowest, 3, -77, -1, 2, 1};
    const auto bytes = [](const const_tensor& from) {
      const auto* const first = static_cast<const std::byte*>(from.data());
      return std::vector<std::byte>{first, first + from.elements() * bytes_of(from.type())};
    };
    // What comes, and what comes home, in the three modes.
    const auto all = [&](const std::vector<std::int64_t>& given) {
      const auto ids = deep_ep::view(given, {4, 2});
      std::vector<std::vector<std::byte>> made;
      const auto layout = buffer.get_dispatch_layout(ids, 4);
      made.push_back(bytes(layout.num_tokens_per_rank));
      made.push_back(bytes(layout.num_tokens_per_expert));
      made.push_back(bytes(layout.is_token_in_rank));
      const auto rows = buffer.dispatch({.x = tokens,
                                         .num_tokens_per_rank = layout.num_tokens_per_rank,
                                         .is_token_in_rank = layout.is_token_in_rank,
                                         .num_tokens_per_expert = layout.num_tokens_per_expert,
                                         .topk_idx = ids,
                                         .topk_weights = factors});
      made.push_back(bytes(rows.recv_topk_idx));
      made.push_back(bytes(rows.recv_topk_weights));
      made.push_back(bytes(buffer.combine({.x = rows.recv_x, .handle = rows.handle}).combined_x));
      const auto low = buffer.low_latency_dispatch({.x = tokens,
                                                    .topk_idx = ids,
                                                    .num_max_dispatch_tokens_per_rank = 4,
                                                    .num_experts = 4,
                                                    .use_fp8 = false});
      made.push_back(bytes(low.recv_count));
      made.push_back(bytes(
          buffer
              .low_latency_combine(
                  {.x = low.recv_x, .topk_idx = ids, .topk_weights = factors, .handle = low.handle})
              .combined_x));
      const auto wide = expanded.dispatch(
          {.x = tokens, .topk_idx = ids, .topk_weights = factors, .num_experts = 4});
      made.push_back(bytes(wide.handle.recv_src_metadata));
      const auto home = expanded.combine(
          {.x = wide.recv_x, .handle = wide.handle, .topk_weights = wide.recv_topk_weights});
      made.push_back(bytes(home.combined_x));
      made.push_back(bytes(home.combined_topk_weights));
      return made;
    };
    test::expect(all(plain) == all(others), "any negative id to be as -1");
  });
  CHECK(worst_status == 0);
}

TEST_CASE("ids of num_experts and more are skipped in normal mode if the buffer is told to") {
  for (const std::size_t ranks : {1U, 2U, 4U}) {
    const int worst_status = group::run(ranks, [](auto& comm) {
      namespace deep_ep = peerbus::deep_ep;
      deep_ep::buffer buffer{
          comm, {.num_max_tokens_per_rank = 4, .other_ids = peerbus::moe::ids_outside::skipped}};
      // Rank 0 has no tokens if there are others.
      const std::size_t count = comm.size() > 1 && comm.rank().index() == 0 ? 0 : 4;
      const std::vector<peerbus::bf16> x(count * 128, peerbus::bf16{3.0F});
      std::vector<float> weights{1, 2, 3, 4, 5, 6, 7, 8};
      constexpr auto highest = std::numeric_limits<std::int64_t>::max();
      const std::vector<std::int64_t> plain{0, -1, -1, 3, -1, -1, 2, 1};
      const std::vector<std::int64_t> others{0, 4, highest, 3, std::int64_t{1} << 32U, -5, 2, 1};
      const std::vector<std::int32_t> narrow{0, 4, 77, 3, 1000, -5, 2, 1};
      const auto factors = const_tensor{weights.data(), dtype::float32, {count, 2}};
      const auto bytes = [](const const_tensor& from) {
        const auto* const first = static_cast<const std::byte*>(from.data());
        return std::vector<std::byte>{first, first + from.elements() * bytes_of(from.type())};
      };
      const auto all = [&](const const_tensor& ids) {
        std::vector<std::vector<std::byte>> made;
        const auto layout = buffer.get_dispatch_layout(ids, 4);
        const auto rows = buffer.dispatch({.x = deep_ep::view(x, {count, 128}),
                                           .num_tokens_per_rank = layout.num_tokens_per_rank,
                                           .is_token_in_rank = layout.is_token_in_rank,
                                           .num_tokens_per_expert = layout.num_tokens_per_expert,
                                           .topk_idx = ids,
                                           .topk_weights = factors});
        const auto home = buffer.combine(
            {.x = rows.recv_x, .handle = rows.handle, .topk_weights = rows.recv_topk_weights});
        for (const const_tensor& result : std::initializer_list<const_tensor>{
                 layout.num_tokens_per_rank, layout.num_tokens_per_expert, layout.is_token_in_rank,
                 rows.recv_x, rows.recv_topk_idx, rows.recv_topk_weights, home.combined_x,
                 home.combined_topk_weights})
          made.push_back(bytes(result));
        return made;
      };
      const auto expected = all({plain.data(), dtype::int64, {count, 2}});
      test::expect(all({others.data(), dtype::int64, {count, 2}}) == expected, "ids as -1");
      test::expect(all({narrow.data(), dtype::int32, {count, 2}}) == expected, "int32 ids as -1");

      // Low latency has no such choice.
      test::expect_error(
          count == 4 && comm.rank().index() == comm.size() - 1 ? errc::invalid_argument
                                                               : errc::refused,
          {"expert id 4 at token 0, slot 1"}, [&] {
            const bool is_bad = comm.rank().index() == comm.size() - 1;
            const auto& given = is_bad ? others : plain;
            static_cast<void>(
                buffer.low_latency_dispatch({.x = deep_ep::view(x, {count, 128}),
                                             .topk_idx = {given.data(), dtype::int64, {count, 2}},
                                             .num_max_dispatch_tokens_per_rank = 4,
                                             .num_experts = 4}));
          });
      // A platform that does not skip such ids.
      deep_ep::buffer ascend{comm,
                             {.num_max_tokens_per_rank = 4,
                              .other_ids = peerbus::moe::ids_outside::skipped,
                              .target = deep_ep::profile::ascend_a3}};
      test::expect_error(errc::invalid_argument, {"topk_idx has 4 for token 0, slot 1"}, [&] {
        static_cast<void>(ascend.get_dispatch_layout({others.data(), dtype::int64, {4, 2}}, 4));
      });
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("get_dispatch_layout refuses") {
  const int worst_status = group::run(2, [](auto& comm) {
    peerbus::deep_ep::buffer buffer{comm};
    std::vector<std::int64_t> ids{0, 1, 2, -1, 4, 5};
    const auto refused = [&](const const_tensor& topk_idx, std::size_t experts,
                             std::initializer_list<std::string_view> says) {
      test::expect_error(errc::invalid_argument, says,
                         [&] { static_cast<void>(buffer.get_dispatch_layout(topk_idx, experts)); });
    };
    const auto good = peerbus::deep_ep::view(std::as_const(ids), {3, 2});
    refused(good, 5,
            {"get_dispatch_layout: topk_idx has 5 for token 2, slot 1", "expected -1 or 0 to 4"});
    for (const std::size_t experts :
         {std::size_t{0}, (std::size_t{1} << 24U) + 1, std::size_t{1} << 28U,
          std::numeric_limits<std::size_t>::max()})
      refused(good, experts, {"get_dispatch_layout: num_experts is ", ", expected 1 to 16777216"});
    static_cast<void>(buffer.get_dispatch_layout(good, 6));
    ids[2] = -2;  // As -1.
    test::expect_equal(
        buffer.get_dispatch_layout(good, 6).num_tokens_per_expert.template at<std::int32_t>(2), 0,
        "tokens of expert 2");
    ids[2] = std::int64_t{1} << 32U;
    refused(good, 6, {"topk_idx has 4294967296 for token 1, slot 0"});
    ids[2] = 2;
    refused({}, 6, {"get_dispatch_layout: topk_idx is none, expected int64 or int32 [any, any]"});
    refused({ids.data(), dtype::int64, {6}}, 6, {"topk_idx is int64 [6], expected"});
    refused({ids.data(), dtype::int64, {3, 2, 1}}, 6, {"topk_idx is int64 [3, 2, 1]"});
    refused({ids.data(), dtype::float32, {3, 2}}, 6, {"topk_idx is float32 [3, 2]"});
    refused({ids.data(), dtype::int64, {3, 2}, {1, 3}}, 6, {"with strides [1, 3]", "contiguous"});
    refused({nullptr, dtype::int64, {3, 2}}, 6, {"topk_idx is int64 [3, 2] at null"});
    const auto* const bytes = reinterpret_cast<const std::byte*>(ids.data());
    refused({bytes + 4, dtype::int64, {2, 2}}, 6, {"topk_idx is at address", "a multiple of 8"});
    static_cast<void>(buffer.get_dispatch_layout(good, 6));
  });
  CHECK(worst_status == 0);
}

}  // namespace layout_test
