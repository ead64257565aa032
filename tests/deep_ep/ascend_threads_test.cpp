// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <doctest/doctest.h>

#include <peerbus/transport/any_transport.hpp>

#include "deep_ep/ascend_suite.hpp"
#include "support/groups.hpp"
#include "support/ranks.hpp"

namespace ascend_threads_test {

namespace {
using group = test::direct_threads;
using ascend::deep_ep::ascend_buffer;
namespace deep_ep = peerbus::deep_ep;
using peerbus::bf16;
using peerbus::errc;
}  // namespace

TEST_CASE("the Ascend layout, threads") { ascend::run_all<group>(); }

TEST_CASE("what the Ascend layout refuses") {
  const int status = group::run(2, [](auto& comm) {
    using buffer = ascend_buffer<peerbus::any_transport>;
    test::expect_error(errc::invalid_argument, {"target is deepep_v1", "ascend_a2 or ascend_a3"},
                       [&] { buffer made(comm, {.target = deep_ep::profile::deepep_v1}); });
    buffer one{comm};
    buffer other{comm};
    const std::vector<bf16> x(2 * 1024, bf16{1.0F});
    const std::vector<std::int64_t> idx{0, 1, 2, 3};
    const std::vector<float> w(4, 1.0F);
    const deep_ep::ascend_dispatch_args good{.x = deep_ep::view(x, {2, 1024}),
                                             .topk_idx = deep_ep::view(idx, {2, 2}),
                                             .num_max_dispatch_tokens_per_rank = 4,
                                             .num_experts = 4};
    const auto refused = [&](std::initializer_list<std::string_view> texts, auto&& change) {
      auto args = good;
      change(args);
      test::expect_error(errc::invalid_argument, texts,
                         [&] { static_cast<void>(one.low_latency_dispatch(args)); });
    };
    const std::vector<bf16> narrow(2 * 1016);
    refused({"ascend_a3", "hidden is 1016", "1024 to 8192"},
            [&](auto& args) { args.x = deep_ep::view(narrow, {2, 1016}); });
    const std::vector<std::int64_t> holes{0, -1, 2, 3};
    refused({"MOE_ENABLE_TOPK_NEG_ONE"},
            [&](auto& args) { args.topk_idx = deep_ep::view(holes, {2, 2}); });
    refused({"num_experts is 5"}, [](auto& args) { args.num_experts = 5; });
    refused({"num_max_dispatch_tokens_per_rank is 513"},
            [](auto& args) { args.num_max_dispatch_tokens_per_rank = 513; });
    const std::vector<std::int64_t> far{0, 1, 2, 4};
    refused({"expert_ids has 4 at token 1, slot 1"},
            [&](auto& args) { args.topk_idx = deep_ep::view(far, {2, 2}); });

    const auto got = one.low_latency_dispatch(good);
    const std::vector<bf16> y(got.recv_x.size(0) * 1024, bf16{1.0F});
    const deep_ep::ascend_combine_args back{.x = deep_ep::view(y, {got.recv_x.size(0), 1024}),
                                            .topk_idx = deep_ep::view(idx, {2, 2}),
                                            .topk_weights = deep_ep::view(w, {2, 2}),
                                            .handle = got.handle};
    test::expect_error(errc::invalid_argument, {"handle is of another buffer"},
                       [&] { static_cast<void>(other.low_latency_combine(back)); });
    auto few = back;
    few.x = deep_ep::const_tensor{y.data(), deep_ep::dtype::bfloat16, {1, 1024}};
    test::expect_error(errc::invalid_argument, {"x has 1 rows, expected at least the 4"},
                       [&] { static_cast<void>(one.low_latency_combine(few)); });
    static_cast<void>(one.low_latency_combine(back));
    static_cast<void>(one.low_latency_combine(back));  // Again.
    static_cast<void>(one.low_latency_dispatch(good));
    static_cast<void>(one.low_latency_combine(back));
    static_cast<void>(one.low_latency_dispatch(good));
    test::expect_error(errc::invalid_argument, {"handle is of dispatch ", "has replaced"},
                       [&] { static_cast<void>(one.low_latency_combine(back)); });

    // Handles of different dispatches, before and after combines of both.
    const auto first = one.low_latency_dispatch(good);
    const auto second = one.low_latency_dispatch(good);
    auto other_handle = back;
    for (int i = 0; i < 2; ++i) {
      other_handle.handle = comm.rank().index() == 1 ? second.handle : first.handle;
      test::expect_error(errc::mismatch,
                         {"low_latency_combine: handle is of call ", "on rank 0 but of call "},
                         [&] { static_cast<void>(one.low_latency_combine(other_handle)); });
      for (const auto& handle : {first.handle, second.handle}) {
        other_handle.handle = handle;
        static_cast<void>(one.low_latency_combine(other_handle));
      }
    }
  });
  CHECK(status == 0);
}

}  // namespace ascend_threads_test
