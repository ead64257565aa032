// SPDX-License-Identifier: MIT
// ctest: tsan
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/compat/cann.hpp>
#include <peerbus/compat/deep_ep.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/transport/loopback.hpp>

#include "support/exchange_check.hpp"
#include "support/indirect.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"
#include "support/two_level_check.hpp"

namespace deep_ep_relay_test {

// DeepEP's and CANN's names where tokens cross once for each host.

namespace {

namespace deep_ep = peerbus::deep_ep;
using peerbus::bf16;
using peerbus::errc;
using peerbus::rank_id;
using peerbus::moe::relay;
using hosts = test::on_hosts<peerbus::loopback, test::indirect<peerbus::loopback>>;
using threads = test::threads_over<hosts>;

constexpr std::size_t experts = 12;
constexpr std::size_t hidden = 128;
constexpr std::size_t top_k = 3;
constexpr std::size_t most = 5;

struct grid {
  std::size_t ranks;
  test::hosts hosts;
};
constexpr grid grids[] = {{4, {2, false}}, {6, {3, true}}};

test::scenario scenario_of(std::size_t ranks, std::uint64_t seed) {
  test::scenario made{{ranks, experts, hidden, top_k}, {}};
  for (std::size_t r = 0; r < ranks; ++r)
    made.inputs.push_back(
        oracle::make_input(made.shape, r, (r + seed) % (most + 1), oracle::routes::holes, seed));
  return made;
}

/// The first expert of `rank`; experts divide by ranks here.
std::size_t first_of(std::size_t rank, std::size_t ranks) { return rank * experts / ranks; }

std::vector<float> widened(std::span<const bf16> row) {
  std::vector<float> values;
  for (const bf16 value : row) values.push_back(oracle::widen(value));
  return values;
}
std::span<const bf16> token_of(const oracle::input& from, std::size_t t) {
  return std::span<const bf16>{from.tokens}.subspan(t * hidden, hidden);
}
/// Adds `weight` times what `expert` makes of `row`, and writes the sum.
void add(std::size_t expert, float weight, std::span<const bf16> row, std::vector<float>& sums) {
  oracle::add_outputs(expert, weight, widened(row), sums);
}

void check_combined(std::span<const bf16> out, const test::scenario& from, std::size_t rank,
                    bool by_rank) {
  test::check_combined(
      out,
      test::two_levels::combined(from.shape, from.inputs[rank],
                                 oracle::codec_of<peerbus::codec::bf16>::encode, by_rank),
      hidden, 0);
}

/// Which slots of which tokens name an expert of a rank: (home, token).
std::multiset<std::pair<std::size_t, std::size_t>> tokens_for(const test::scenario& from,
                                                              std::size_t expert) {
  std::multiset<std::pair<std::size_t, std::size_t>> found;
  for (std::size_t r = 0; r < from.inputs.size(); ++r)
    for (std::size_t slot = 0; slot < from.inputs[r].experts.size(); ++slot)
      if (from.inputs[r].experts[slot] == static_cast<std::int64_t>(expert))
        found.emplace(r, slot / top_k);
  return found;
}

}  // namespace

TEST_CASE("relay: low-latency calls") {
  for (const grid& one : grids)
    for (const bool zero_copy : {false, true}) {
      test::pretended = one.hosts;
      const int worst_status = threads::run(one.ranks, [&](auto& comm) {
        deep_ep::buffer buffer{comm, {.zero_copy = zero_copy, .relay = relay::always}};
        const std::size_t rank = comm.rank().index();
        const std::size_t local = experts / comm.size();
        const std::size_t rows = comm.size() * most;
        for (std::uint64_t seed = 0; seed < 5; ++seed) {
          const test::scenario from = scenario_of(comm.size(), seed);
          const oracle::input& mine = from.inputs[rank];
          const bool hooks = seed % 2 == 0;
          auto got = buffer.low_latency_dispatch(
              {.x = deep_ep::view(mine.tokens, {mine.count, hidden}),
               .topk_idx = deep_ep::view(mine.experts, {mine.count, top_k}),
               .num_max_dispatch_tokens_per_rank = most,
               .num_experts = experts,
               .use_fp8 = false,
               .return_recv_hook = hooks});
          if (hooks) got.hook();
          std::vector<bf16> outputs(local * rows * hidden);
          for (std::size_t e = 0; e < local; ++e) {
            const std::size_t expert = first_of(rank, comm.size()) + e;
            auto left = tokens_for(from, expert);
            test::expect_equal(
                static_cast<std::size_t>(got.recv_count.template at<std::int32_t>(e)), left.size(),
                "rows of expert ", expert);
            for (std::size_t r = 0; r < comm.size(); ++r) {
              const auto range = got.handle.layout_range.template at<std::int64_t>(e, r);
              const auto begin = static_cast<std::size_t>(range >> 32);
              const auto count = static_cast<std::size_t>(range & 0xffffffff);
              for (std::size_t i = begin; i < begin + count; ++i) {
                const auto token =
                    static_cast<std::size_t>(got.handle.src_info.template at<std::int32_t>(e, i));
                const auto found = left.find({r, token});
                test::expect(found != left.end(), "a row that was sent");
                left.erase(found);
                const bf16* const row = &got.recv_x.template at<bf16>(e, i);
                test::expect(
                    std::ranges::equal(std::span{row, hidden}, token_of(from.inputs[r], token),
                                       [](bf16 a, bf16 b) { return a.bits == b.bits; }),
                    "the bytes of a row");
                std::vector<float> sums(hidden);
                add(expert, 1, {row, hidden}, sums);
                oracle::round(sums, std::span{outputs}.subspan((e * rows + i) * hidden, hidden));
              }
            }
            test::expect(left.empty(), "every row");
          }
          // Twice with one handle.
          for (int again = 0; again < 2; ++again) {
            deep_ep::const_tensor x = deep_ep::view(outputs, {local, rows, hidden});
            if (zero_copy) {
              const auto place = buffer.get_next_low_latency_combine_buffer(got.handle);
              for (std::size_t e = 0; e < local; ++e)
                std::copy_n(
                    outputs.data() + e * rows * hidden,
                    static_cast<std::size_t>(got.recv_count.template at<std::int32_t>(e)) * hidden,
                    &place.template at<bf16>(e));
              x = place;
            }
            auto sums = buffer.low_latency_combine(
                {.x = x,
                 .topk_idx = deep_ep::view(mine.experts, {mine.count, top_k}),
                 .topk_weights = deep_ep::view(mine.weights, {mine.count, top_k}),
                 .handle = got.handle,
                 .zero_copy = zero_copy,
                 .return_recv_hook = hooks});
            if (hooks) sums.hook();
            check_combined(sums.combined_x.template values<bf16>(), from, rank, false);
          }
        }
      });
      CHECK(worst_status == 0);
    }
}

TEST_CASE("relay: normal calls, with weights that come home") {
  for (const grid& one : grids) {
    test::pretended = one.hosts;
    const int worst_status = threads::run(one.ranks, [](auto& comm) {
      deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = most, .relay = relay::always}};
      const std::size_t rank = comm.rank().index();
      for (std::uint64_t seed = 0; seed < 5; ++seed) {
        const test::scenario from = scenario_of(comm.size(), seed);
        const oracle::input& mine = from.inputs[rank];
        const auto ids = deep_ep::view(mine.experts, {mine.count, top_k});
        const auto layout = buffer.get_dispatch_layout(ids, experts);
        const auto x = deep_ep::view(mine.tokens, {mine.count, hidden});
        const auto got =
            buffer.dispatch({.x = x,
                             .num_tokens_per_rank = layout.num_tokens_per_rank,
                             .is_token_in_rank = layout.is_token_in_rank,
                             .num_tokens_per_expert = layout.num_tokens_per_expert,
                             .topk_idx = ids,
                             .topk_weights = deep_ep::view(mine.weights, {mine.count, top_k})});
        const std::size_t rows = got.recv_x.size(0);
        test::expect_equal(static_cast<std::size_t>(
                               got.handle.rank_prefix.template at<std::int32_t>(comm.size() - 1)),
                           rows, "rows");
        std::vector<bf16> outputs(rows * hidden);
        std::vector<float> home(rows * top_k);
        for (std::size_t i = 0; i < rows; ++i) {
          std::vector<float> sums(hidden);
          for (std::size_t k = 0; k < top_k; ++k) {
            const auto e = got.recv_topk_idx.template at<std::int64_t>(i, k);
            if (e == -1) continue;
            home[i * top_k + k] = got.recv_topk_weights.template at<float>(i, k);
            add(first_of(rank, comm.size()) + static_cast<std::size_t>(e), home[i * top_k + k],
                {&got.recv_x.template at<bf16>(i), hidden}, sums);
          }
          oracle::round(sums, std::span{outputs}.subspan(i * hidden, hidden));
        }
        for (int again = 0; again < 2; ++again) {
          const auto sums = buffer.combine({.x = deep_ep::view(outputs, {rows, hidden}),
                                            .handle = got.handle,
                                            .topk_weights = deep_ep::view(home, {rows, top_k})});
          check_combined(sums.combined_x.template values<bf16>(), from, rank, true);
          for (std::size_t slot = 0; slot < mine.experts.size(); ++slot)
            test::expect_equal(
                sums.combined_topk_weights.template at<float>(slot / top_k, slot % top_k),
                mine.experts[slot] == -1 ? 0.0F : mine.weights[slot], "weight of slot ", slot);
        }
        // The same rows by the handle.
        const auto second = buffer.dispatch({.x = x, .handle = got.handle});
        test::expect_equal(second.recv_x.size(0), rows, "rows by a handle");
        test::expect_error(errc::unsupported, {"num_worst_tokens", "relay is used"}, [&] {
          static_cast<void>(
              buffer.dispatch({.x = x,
                               .num_tokens_per_rank = layout.num_tokens_per_rank,
                               .is_token_in_rank = layout.is_token_in_rank,
                               .num_tokens_per_expert = layout.num_tokens_per_expert,
                               .topk_idx = ids,
                               .topk_weights = deep_ep::view(mine.weights, {mine.count, top_k}),
                               .num_worst_tokens = 64}));
        });
      }
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("relay: CANN's operators") {
  for (const grid& one : grids) {
    test::pretended = one.hosts;
    const int worst_status = threads::run(one.ranks, [](auto& comm) {
      peerbus::cann::moe_distribute moe{comm,
                                        {.hidden = hidden,
                                         .top_k = top_k,
                                         .max_tokens = most,
                                         .moe_expert_num = experts,
                                         .relay = relay::always},
                                        peerbus::codec::bf16{}};
      const std::size_t rank = comm.rank().index();
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        test::scenario from = scenario_of(comm.size(), seed);
        // The operators have no empty slots.
        for (auto& input : from.inputs)
          for (std::size_t slot = 0; slot < input.experts.size(); ++slot)
            input.experts[slot] =
                static_cast<std::int64_t>((3 * (slot / top_k) + slot % top_k + seed) % experts);
        const oracle::input& mine = from.inputs[rank];
        const std::vector<std::int32_t> ids(mine.experts.begin(), mine.experts.end());
        const auto got = moe.dispatch({.x = mine.tokens, .expert_ids = ids});
        std::size_t row = 0;
        for (std::size_t e = 0; e < got.expert_token_nums.size(); ++e) {
          const std::size_t expert = first_of(rank, comm.size()) + e;
          test::expect_equal(static_cast<std::size_t>(got.expert_token_nums[e]),
                             tokens_for(from, expert).size(), "rows of expert ", expert);
          for (std::int64_t i = 0; i < got.expert_token_nums[e]; ++i, ++row) {
            std::vector<float> sums(hidden);
            add(expert, 1, got.expand_x.subspan(row * hidden, hidden), sums);
            oracle::round(sums, got.expert_out.subspan(row * hidden, hidden));
          }
          test::expect_equal(
              static_cast<std::size_t>(got.ep_recv_counts[(e + 1) * comm.size() - 1]), row,
              "prefix sums");
        }
        std::vector<bf16> out(mine.tokens.size());
        moe.combine({.dispatched = got, .expert_scales = mine.weights, .out = out});
        check_combined(out, from, rank, false);
      }
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("relay: low-latency calls need groups of equal size") {
  test::pretended = {2, false};
  CHECK(threads::run(5, [](auto& comm) {
          deep_ep::buffer buffer{comm, {.relay = relay::always}};
          const std::vector<bf16> x(hidden);
          const std::vector<std::int64_t> ids(top_k, -1);
          test::expect_error(errc::unsupported, {"groups of different sizes"}, [&] {
            static_cast<void>(
                buffer.low_latency_dispatch({.x = deep_ep::view(x, {1, hidden}),
                                             .topk_idx = deep_ep::view(ids, {1, top_k}),
                                             .num_max_dispatch_tokens_per_rank = most,
                                             .num_experts = 20,
                                             .use_fp8 = false}));
          });
        }) == 0);
}

}  // namespace deep_ep_relay_test
