// SPDX-License-Identifier: MIT
#include <peerbus.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep/profile.hpp>
#include <peerbus/compat/deep_ep/size_hint.hpp>
#include <peerbus/core/bf16.hpp>

#include "embed_c/ranks_of_c.hpp"
#include "embed_c/tensor.hpp"
#include "support/oracle.hpp"

namespace ep_buffer_test {

using embed_c::fails;
using embed_c::kind;
using embed_c::ok;
using embed_c::tensor;
using peerbus::bf16;
using test::expect;
using test::expect_equal;

namespace {

namespace deep_ep = peerbus::deep_ep;

const std::int32_t* ints(const peerbus_array& array) {
  return static_cast<const std::int32_t*>(array.data);
}

/// Sends tokens whose values are their sender, and sums up what all experts return unchanged.
void round_trip(peerbus_comm* comm) {
  constexpr std::size_t hidden = 16, top_k = 2, most = 8, alignment = 4;
  const std::size_t rank = peerbus_comm_rank(comm), ranks = peerbus_comm_size(comm);
  const std::size_t count = most - rank, local = 2, experts = local * ranks;
  std::vector<bf16> x(count * hidden, bf16{static_cast<float>(rank + 1)});
  std::vector<std::int64_t> ids(count * top_k);
  for (std::size_t t = 0; t < count; ++t) {
    ids[t * top_k] = static_cast<std::int64_t>((t + rank) % experts);
    ids[t * top_k + 1] = t == 1 ? -1 : static_cast<std::int64_t>((t + rank + 1) % experts);
  }
  std::vector<float> weights(count * top_k, 0.5F);
  std::array<std::int32_t, local> stats{};
  tensor rows{x.data(), PEERBUS_BFLOAT, 16, {count, hidden}};
  tensor routes{ids.data(), PEERBUS_INT, 64, {count, top_k}};
  tensor factors{weights.data(), PEERBUS_FLOAT, 32, {count, top_k}};
  tensor added{stats.data(), PEERBUS_INT, 32, {local}};

  peerbus_ep_buffer_options options{};
  // As a program of a version without `between`, on one rank.
  options.struct_bytes = rank == 0 ? offsetof(peerbus_ep_buffer_options, between) : sizeof options;
  options.num_max_tokens_per_rank = most;
  options.between = std::uint64_t{1} << 40U;
  peerbus_ep_buffer* buffer = nullptr;
  ok(peerbus_ep_buffer_create(comm, &options, &buffer), "create");
  peerbus_ep_dispatch_args args{};
  args.struct_bytes = sizeof args;
  args.do_zero_padding = 1;
  args.x = &rows;
  args.topk_idx = &routes;
  args.topk_weights = &factors;
  args.cumulative_local_expert_recv_stats = &added;
  args.num_experts = experts;
  args.expert_alignment = alignment;
  peerbus_ep_received received{};
  received.struct_bytes = sizeof received;
  ok(peerbus_ep_dispatch(buffer, &args, &received), "dispatch");

  const auto all = static_cast<std::size_t>(received.recv_x.shape[0]);
  expect_equal(received.num_expanded_tokens, all, "rows and gaps");
  const auto* const values = static_cast<const bf16*>(received.recv_x.data);
  const auto* const row_weights = static_cast<const float*>(received.recv_topk_weights.data);
  std::size_t begin = 0;
  for (std::size_t e = 0; e < local; ++e) {
    std::size_t expected = 0;
    for (std::size_t source = 0; source < ranks; ++source)
      for (std::size_t t = 0; t < most - source; ++t)
        for (std::size_t k = 0; k < top_k; ++k) {
          if (t == 1 && k == 1) continue;
          if ((t + source + k) % experts != rank * local + e) continue;
          const std::size_t row = begin + expected++;
          expect(row < all, "a row too many");
          expect_equal(static_cast<float>(values[row * hidden]), static_cast<float>(source + 1),
                       "value of a row");
          expect_equal(row_weights[row], 0.5F, "weight of a row");
        }
    const std::size_t end = begin + expected;
    expect_equal(ints(received.psum_num_recv_tokens_per_expert)[e], static_cast<std::int32_t>(end),
                 "end of an expert");
    expect_equal(ints(received.num_unaligned_recv_tokens_per_expert)[e],
                 static_cast<std::int32_t>(expected), "rows of an expert");
    expect_equal(stats[e], static_cast<std::int32_t>(expected), "statistics");
    begin = (end + alignment - 1) / alignment * alignment;
    for (std::size_t gap = end; gap < begin; ++gap)
      expect_equal(static_cast<float>(values[gap * hidden]), 0.0F, "gap");
  }

  peerbus_tensor outputs = peerbus_tensor_of(&received.recv_x);
  peerbus_tensor output_weights = peerbus_tensor_of(&received.recv_topk_weights);
  peerbus_ep_combine_args back{};
  back.struct_bytes = sizeof back;
  back.async_with_compute_stream = 1;
  back.x = &outputs;
  back.topk_weights = &output_weights;
  back.handle = received.result;
  peerbus_combined combined{};
  combined.struct_bytes = sizeof combined;
  ok(peerbus_ep_combine(buffer, &back, &combined), "combine");
  ok(peerbus_result_wait(combined.result), "wait");
  const auto* const sums = static_cast<const bf16*>(combined.combined_x.data);
  const auto* const returned = static_cast<const float*>(combined.combined_topk_weights.data);
  for (std::size_t t = 0; t < count; ++t) {
    const float copies = t == 1 ? 1 : 2;
    expect_equal(static_cast<float>(sums[t * hidden]), copies * static_cast<float>(rank + 1),
                 "sum");
    expect_equal(returned[t * top_k + 1], t == 1 ? 0.0F : 0.5F, "returned weight");
  }
  peerbus_combined again{};
  again.struct_bytes = sizeof again;
  back.handle = combined.result;
  fails(peerbus_ep_combine(buffer, &back, &again), PEERBUS_INVALID_ARGUMENT,
        "result of another call");
  args.expert_alignment = 0;
  args.x = &factors;
  fails(peerbus_ep_dispatch(buffer, &args, &received), PEERBUS_INVALID_ARGUMENT, "x is");
  if (rank == 0)
    ok(peerbus_ep_buffer_refuse(buffer, "no weights yet", 0), "refuse");
  else
    fails(peerbus_ep_dispatch(buffer, &args, &received), PEERBUS_INVALID_ARGUMENT, "x is");
  args.expert_alignment = alignment;
  args.x = &rows;
  peerbus_result_destroy(&received.result);
  if (rank == 0)
    ok(peerbus_ep_buffer_refuse(buffer, "no weights yet", 0), "refuse");
  else
    fails(peerbus_ep_dispatch(buffer, &args, &received), PEERBUS_REFUSED, "no weights yet");
  ok(peerbus_ep_dispatch(buffer, &args, &received), "a dispatch after all that");
  peerbus_result_destroy(&combined.result);
  peerbus_result_destroy(&received.result);
  peerbus_ep_buffer_destroy(&buffer);
}

/// Returns the findings as lines of kind, what, given, expected and advice.
std::string examined(std::int32_t target, const peerbus_call& call) {
  std::string lines;
  const auto visit = [](const peerbus_finding* f, void* context) {
    auto& all = *static_cast<std::string*>(context);
    all += std::to_string(f->kind) + "|" + f->what + "|" + f->given + "|" + f->expected + "|" +
           f->advice + "\n";
  };
  ok(peerbus_examine(target, &call, visit, &lines), "examine");
  // The same in an array, which may be too short.
  std::array<peerbus_finding, 8> listed{};
  std::uint64_t count = 0;
  for (const std::uint64_t capacity : {0U, 1U, 8U}) {
    ok(peerbus_findings(target, &call, listed.data(), capacity, &count), "findings");
    std::string again;
    for (std::uint64_t i = 0; i < std::min(capacity, count); ++i) visit(&listed[i], &again);
    CHECK(lines.starts_with(again));
    CHECK((again == lines) == (capacity >= count));
  }
  return lines;
}

}  // namespace

TEST_CASE("EPBuffer's calls through C") {
  for (const std::uint64_t ranks : {1U, 2U, 3U})
    CHECK(embed_c::run(ranks, kind::threads, round_trip) == 0);
  CHECK(embed_c::run(2, kind::processes, round_trip) == 0);
  CHECK(embed_c::run(3, kind::hosts, round_trip) == 0);
}

TEST_CASE("rows of experts are added up to rows of tokens") {
  constexpr std::size_t hidden = 19, top_k = 3, tokens = 4, most = 6;
  std::vector<bf16> x(most * hidden);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = bf16{static_cast<float>(i % 7) * 0.3F - 1 + static_cast<float>(i) / 1024};
  std::vector<std::int32_t> slots{4, -1, 0, -1, -1, -1, 5, 2, 1, -1, 3, -1};
  std::vector<bf16> sums(tokens * hidden, bf16{9.0F});
  tensor rows{x.data(), PEERBUS_BFLOAT, 16, {most, hidden}};
  tensor places{slots.data(), PEERBUS_INT, 32, {tokens, top_k}};
  tensor out{sums.data(), PEERBUS_BFLOAT, 16, {tokens, hidden}};
  ok(peerbus_fold_rows(&rows, &places, &out), "fold");
  for (std::size_t t = 0; t < tokens; ++t)
    for (std::size_t j = 0; j < hidden; ++j) {
      float sum = 0;
      for (std::size_t k = 0; k < top_k; ++k)
        if (const std::int32_t row = slots[t * top_k + k]; row >= 0)
          sum += static_cast<float>(x[static_cast<std::size_t>(row) * hidden + j]);
      CHECK(sums[t * hidden + j].bits == bf16{sum}.bits);
    }
  const std::vector<bf16> before = sums;
  slots[11] = 6;
  fails(peerbus_fold_rows(&rows, &places, &out), PEERBUS_INVALID_ARGUMENT,
        "slots has 6 at [3, 2], expected -1 or a row below 6");
  slots[11] = -2;
  fails(peerbus_fold_rows(&rows, &places, &out), PEERBUS_INVALID_ARGUMENT, "slots has -2");
  slots[11] = 0;
  out.sizes[0] = 3;
  fails(peerbus_fold_rows(&rows, &places, &out), PEERBUS_INVALID_ARGUMENT,
        "sums is bfloat16 [3, 19], expected bfloat16 [4, 19]");
  fails(peerbus_fold_rows(&rows, &rows, &out), PEERBUS_INVALID_ARGUMENT, "slots is bfloat16");
  fails(peerbus_fold_rows(nullptr, &places, &out), PEERBUS_INVALID_ARGUMENT, "x is");
  for (std::size_t i = 0; i < sums.size(); ++i) CHECK(sums[i].bits == before[i].bits);
}

TEST_CASE("platforms through C") {
  std::int32_t target = 0;
  for (const deep_ep::profile platform : deep_ep::all_profiles)
    CHECK(std::string_view{peerbus_target_name(target++)} == to_string(platform));
  CHECK(peerbus_target_name(target) == nullptr);
  CHECK(peerbus_target_name(-1) == nullptr);

  peerbus_call call{};
  call.struct_bytes = sizeof call;
  call.operation = PEERBUS_LOW_LATENCY_DISPATCH;
  call.ranks = 16;
  call.tokens = call.max_tokens = 128;
  call.hidden = 7168;
  call.top_k = 17;
  call.experts = 256;
  call.options = PEERBUS_CALL_DROPPED | PEERBUS_CALL_RETURN_RECV_HOOK;
  const std::string lines = examined(PEERBUS_ASCEND_A3, call);
  CHECK(lines ==
        "0|num_topk|17|at most 16|choose fewer experts per token\n"
        "1|return_recv_hook|true|false|leave it out: the call always receives; overlap by a second "
        "stream instead\n"
        "2|recv_x|||is packed, [rows, hidden], expert after expert, without the padding\n"
        "2|recv_count|||is int64, not int32\n"
        "3|HCCL_BUFFSIZE||988|MB, the same on all ranks; 200 if not set\n"
        "3|MOE_ENABLE_TOPK_NEG_ONE||1|for -1 in topk_idx\n");
  fails(peerbus_require(PEERBUS_ASCEND_A3, &call), PEERBUS_INVALID_ARGUMENT,
        "ascend_a3 refuses low_latency_dispatch: num_topk is 17");
  ok(peerbus_require(PEERBUS_UNRESTRICTED, &call), "require");
  fails(peerbus_require(6, &call), PEERBUS_INVALID_ARGUMENT, "target is 6, expected 0 to 5");
  call.operation = 10;
  fails(peerbus_require(0, &call), PEERBUS_INVALID_ARGUMENT, "operation is 10, expected 0 to 9");
  fails(peerbus_examine(0, &call, nullptr, nullptr), PEERBUS_INVALID_ARGUMENT, "visit is NULL");
  fails(peerbus_findings(0, &call, nullptr, 1, nullptr), PEERBUS_INVALID_ARGUMENT,
        "findings is NULL");
  fails(peerbus_findings(0, &call, nullptr, 0, nullptr), PEERBUS_INVALID_ARGUMENT, "count is NULL");

  call.operation = PEERBUS_EP_DISPATCH;
  call.options = PEERBUS_CALL_DO_EXPAND | PEERBUS_CALL_NO_MULTIPLE_REDUCTION;
  CHECK(examined(PEERBUS_ASCEND_950, call).starts_with("0|allow_multiple_reduction|false|true|"));
}

TEST_CASE("tensors for neighbours, through C") {
  const auto body = [](peerbus_comm* comm) {
    const std::uint64_t rank = peerbus_comm_rank(comm);
    const std::uint64_t size = peerbus_comm_size(comm);
    const std::uint64_t next = (rank + 1) % size;
    const std::uint64_t before = (rank + size - 1) % size;
    peerbus_pp* pp = nullptr;
    const bool is_culprit = rank == size - 1;
    fails(peerbus_pp_create(comm, 100, is_culprit ? 0 : 2, 0, &pp),
          is_culprit ? PEERBUS_INVALID_ARGUMENT : PEERBUS_REFUSED, "num_max_inflight_tensors is 0");
    expect(pp == nullptr, "no buffer");
    ok(peerbus_pp_create(comm, 100, 2, 0, &pp), "create");
    for (std::uint64_t turn = 0; turn < 5; ++turn) {
      const std::uint64_t letter = 100 * rank + turn;
      ok(peerbus_pp_send(pp, &letter, sizeof letter, next, 0), "send");
      std::uint64_t came = 0;
      ok(peerbus_pp_recv(pp, &came, sizeof came, before, 0), "recv");
      expect_equal(came, 100 * before + turn, "the letter");
    }
    std::uint64_t bytes = 0;
    expect(peerbus_pp_storage(pp, &bytes) != nullptr, "places");
    expect_equal(bytes, 2U * 2U * (64U + 128U), "bytes of the places");
    fails(peerbus_pp_send(pp, nullptr, 8, next, 0), PEERBUS_INVALID_ARGUMENT, "at null");
    std::uint64_t came = 0;
    fails(peerbus_pp_recv(pp, &came, sizeof came, before, 0), PEERBUS_REFUSED, "sent nothing");
    fails(peerbus_pp_send(pp, &came, 8, size, 0), PEERBUS_INVALID_ARGUMENT, "dst_rank_idx is");
    fails(peerbus_pp_recv(pp, &came, 8, before, 1), PEERBUS_TIMED_OUT, "pp_recv");
    ok(peerbus_comm_barrier(comm, 0), "barrier");
    peerbus_pp_destroy(&pp);
    fails(peerbus_pp_send(pp, &came, 8, next, 0), PEERBUS_INVALID_ARGUMENT, "the pp is NULL");
  };
  for (const std::uint64_t ranks : {1U, 2U, 4U})
    CHECK(embed_c::run(ranks, kind::threads, body) == 0);
  CHECK(embed_c::run(3, kind::processes, body) == 0);
}

TEST_CASE("sizes that DeepEP asks for, through C") {
  peerbus_deep_ep_config config{sizeof config, 0, 20, 6, 256, 6, 256};
  std::uint64_t bytes = 0;
  ok(peerbus_nvl_buffer_size_hint(&config, 14336, 8, &bytes), "hint");
  CHECK(bytes == deep_ep::config{}.nvl_buffer_size_hint(14336, 8));
  config.num_sms = 3;
  fails(peerbus_nvl_buffer_size_hint(&config, 14336, 8, &bytes), PEERBUS_INVALID_ARGUMENT,
        "num_sms is 3");
  CHECK(peerbus_ep_buffer_size_hint(8, 128, 7168, 8, 0, 1) ==
        deep_ep::ep_buffer_size_hint(8, 128, 7168, 8, false, true));
}

}  // namespace ep_buffer_test
