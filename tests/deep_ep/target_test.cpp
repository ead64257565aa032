// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/transport/any_transport.hpp>

#include "support/groups.hpp"
#include "support/ranks.hpp"

namespace target_test {

/// That every call of a buffer is checked against its target, with what the call was given. The
/// limits themselves: profile_test.cpp.
namespace {

namespace deep_ep = peerbus::deep_ep;
using deep_ep::view;
using peerbus::bf16;
using peerbus::errc;
using buffer = deep_ep::buffer<peerbus::any_transport>;
using texts = std::initializer_list<std::string_view>;

constexpr std::size_t tokens = 2, hidden = 2048, experts = 4;

struct data {
  std::vector<bf16> x = std::vector<bf16>(tokens * hidden, bf16{1.0F});
  std::vector<std::int64_t> idx{0, 1, 2, 3};
  std::vector<float> weights = std::vector<float>(4, 1.0F);
};

deep_ep::low_latency_dispatch_args low_latency(const data& of) {
  return {.x = view(of.x, {tokens, hidden}),
          .topk_idx = view(of.idx, {tokens, 2}),
          .num_max_dispatch_tokens_per_rank = 4,
          .num_experts = experts};
}

void refused(texts what, auto&& call) { test::expect_error(errc::invalid_argument, what, call); }

}  // namespace

TEST_CASE("a buffer for DeepEP itself") {
  const int status = test::direct_threads::run(2, [](auto& comm) {
    buffer one{comm, {.num_max_tokens_per_rank = 4, .target = deep_ep::profile::deepep_v1}};
    const data of;
    const auto got = one.low_latency_dispatch(low_latency(of));  // Fits.
    auto many = low_latency(of);
    many.num_max_dispatch_tokens_per_rank = 512;
    refused({"deepep_v1 refuses low_latency_dispatch", "NVSHMEM_QP_DEPTH is 1024", "1026"},
            [&] { static_cast<void>(one.low_latency_dispatch(many)); });
    const std::vector<bf16> odd(tokens * 1920);
    auto narrow = low_latency(of);
    narrow.x = view(odd, {tokens, 1920});
    refused({"deepep_v1", "hidden is 1920"},
            [&] { static_cast<void>(one.low_latency_dispatch(narrow)); });
    const std::vector<std::int32_t> short_ids{0, 1, 2, 3};
    auto of_int32 = low_latency(of);
    of_int32.topk_idx = view(short_ids, {tokens, 2});
    refused({"deepep_v1", "topk_idx's type", "expected int64"},
            [&] { static_cast<void>(one.low_latency_dispatch(of_int32)); });

    const std::vector<bf16> y(got.recv_x.size(0) * got.recv_x.size(1) * hidden);
    static_cast<void>(
        one.low_latency_combine({.x = view(y, {got.recv_x.size(0), got.recv_x.size(1), hidden}),
                                 .topk_idx = view(of.idx, {tokens, 2}),
                                 .topk_weights = view(of.weights, {tokens, 2}),
                                 .handle = got.handle}));
  });
  CHECK(status == 0);
}

TEST_CASE("a buffer for an Ascend A3") {
  const int status = test::direct_threads::run(2, [](auto& comm) {
    buffer one{comm, {.num_max_tokens_per_rank = 4, .target = deep_ep::profile::ascend_a3}};
    const data of;
    auto hooked = low_latency(of);
    hooked.return_recv_hook = true;
    refused({"ascend_a3", "return_recv_hook", "no effect"},
            [&] { static_cast<void>(one.low_latency_dispatch(hooked)); });
    data holes;
    holes.idx[1] = -1;
    refused({"ascend_a3", "MOE_ENABLE_TOPK_NEG_ONE"},
            [&] { static_cast<void>(one.low_latency_dispatch(low_latency(holes))); });

    const auto got = one.low_latency_dispatch(low_latency(of));
    const std::vector<bf16> y(got.recv_x.size(0) * got.recv_x.size(1) * hidden);
    std::vector<bf16> out(tokens * hidden);
    deep_ep::low_latency_combine_args back{
        .x = view(y, {got.recv_x.size(0), got.recv_x.size(1), hidden}),
        .topk_idx = view(of.idx, {tokens, 2}),
        .topk_weights = view(of.weights, {tokens, 2}),
        .handle = got.handle};
    back.out = view(out, {tokens, hidden});
    refused({"ascend_a3 refuses low_latency_combine", "out"},
            [&] { static_cast<void>(one.low_latency_combine(back)); });
    back.out = {};
    static_cast<void>(one.low_latency_combine(back));

    // Normal mode.
    const auto layout = one.get_dispatch_layout(view(of.idx, {tokens, 2}), experts);
    deep_ep::dispatch_args there{.x = view(of.x, {tokens, hidden}),
                                 .num_tokens_per_rank = layout.num_tokens_per_rank,
                                 .is_token_in_rank = layout.is_token_in_rank,
                                 .num_tokens_per_expert = layout.num_tokens_per_expert,
                                 .topk_idx = view(of.idx, {tokens, 2}),
                                 .topk_weights = view(of.weights, {tokens, 2})};
    there.num_worst_tokens = 8;
    refused({"ascend_a3", "num_worst_tokens"}, [&] { static_cast<void>(one.dispatch(there)); });
    there.num_worst_tokens = 0;
    const auto sent = one.dispatch(there);
    refused({"ascend_a3", "handle"}, [&] {
      static_cast<void>(one.dispatch({.x = view(of.x, {tokens, hidden}), .handle = sent.handle}));
    });
    const std::vector<bf16> rows(sent.recv_x.size(0) * hidden);
    const std::vector<bf16> bias(tokens * hidden);
    deep_ep::combine_args home{.x = view(rows, {sent.recv_x.size(0), hidden}),
                               .handle = sent.handle};
    home.bias[0] = view(bias, {tokens, hidden});
    refused({"ascend_a3 refuses combine", "bias"}, [&] { static_cast<void>(one.combine(home)); });
    home.bias = {};
    static_cast<void>(one.combine(home));
  });
  CHECK(status == 0);
}

}  // namespace target_test
