// SPDX-License-Identifier: MIT
#include <peerbus.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/compat/deep_ep/buffer.hpp>
#include <peerbus/compat/deep_ep/size_hint.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>

#include "embed_c/ranks_of_c.hpp"
#include "embed_c/tensor.hpp"
#include "support/instances.hpp"
#include "support/oracle.hpp"

namespace deep_ep_test {

using embed_c::fails;
using embed_c::kind;
using embed_c::ok;
using embed_c::tensor;
using peerbus::bf16;
using test::expect;
using test::expect_equal;

namespace {

namespace deep_ep = peerbus::deep_ep;
using bus = peerbus::any_transport;

constexpr std::size_t hidden = 128, experts = 5, top_k = 2, most = 6;

/// The input of a rank. Rank 0 has no tokens if there are several ranks.
struct batch {
  std::size_t count;
  std::vector<bf16> x;
  std::vector<std::int64_t> ids;
  std::vector<float> weights;

  batch(std::size_t rank, std::size_t ranks)
      : count{ranks == 1 ? most : rank * most / (ranks - 1)},
        x(count * hidden),
        ids(count * top_k),
        weights(count * top_k) {
    oracle::random draw{rank + 17 * ranks};
    for (bf16& value : x) value = bf16{static_cast<float>(draw.unit() * 6 - 3)};
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<std::int64_t>((i * 3 + rank) % experts);
      weights[i] = static_cast<float>(draw.unit());
    }
    for (std::size_t i = 3; i < ids.size(); i += 4) ids[i] = -1;
  }
};

/// A rank's input as C takes it, and the arguments of a low-latency dispatch of it.
struct low_latency_input {
  batch in;
  tensor x{in.x.data(), PEERBUS_BFLOAT, 16, {in.count, hidden}};
  tensor ids{in.ids.data(), PEERBUS_INT, 64, {in.count, top_k}};
  tensor weights{in.weights.data(), PEERBUS_FLOAT, 32, {in.count, top_k}};

  low_latency_input(std::size_t rank, std::size_t ranks) : in{rank, ranks} {}
  low_latency_input(const low_latency_input&) = delete;
  low_latency_input& operator=(const low_latency_input&) = delete;

  [[nodiscard]] peerbus_low_latency_dispatch_args args() const {
    peerbus_low_latency_dispatch_args made{};
    made.struct_bytes = sizeof made;
    made.x = &x;
    made.topk_idx = &ids;
    made.num_max_dispatch_tokens_per_rank = most;
    made.num_experts = experts;
    return made;
  }
};

/// All that a round gave to a rank.
using outcome = std::vector<std::byte>;

void append(outcome& to, const void* bytes, std::size_t count) {
  const auto* const first = static_cast<const std::byte*>(bytes);
  if (count != 0) to.insert(to.end(), first, first + count);
}
/// Appends the rows of the experts of a low-latency result, each with its scales.
template <class CountOf>
void append_rows(outcome& to, const void* rows, std::size_t row_bytes, const float* scales,
                 std::size_t local, std::size_t capacity, CountOf&& count_of) {
  for (std::size_t e = 0; e < local; ++e)
    for (std::size_t i = 0; i < count_of(e); ++i) {
      append(to, static_cast<const std::byte*>(rows) + (e * capacity + i) * row_bytes, row_bytes);
      if (scales != nullptr) append(to, scales + e * capacity + i, sizeof(float));
    }
}

std::size_t local_experts(std::size_t rank, std::size_t ranks) {
  return peerbus::moe::expert_placement{experts, ranks}.count(peerbus::rank_id{rank});
}

void low_latency_by_c(peerbus_comm* comm, bool fp8, bool hooks, outcome& result) {
  const std::size_t rank = peerbus_comm_rank(comm);
  const std::size_t ranks = peerbus_comm_size(comm);
  peerbus_buffer* buffer = nullptr;
  ok(peerbus_buffer_create(comm, nullptr, &buffer), "buffer");
  const low_latency_input input{rank, ranks};
  auto args = input.args();
  args.use_fp8 = fp8 ? 1 : 0;
  args.return_recv_hook = hooks ? 1 : 0;
  peerbus_low_latency_received received{};
  received.struct_bytes = sizeof received;
  ok(peerbus_low_latency_dispatch(buffer, &args, &received), "dispatch");
  ok(peerbus_result_wait(received.result), "wait");
  if (hooks)
    fails(peerbus_result_wait(received.result), PEERBUS_INVALID_ARGUMENT, "hook");
  else
    ok(peerbus_result_wait(received.result), "a second wait");

  const std::size_t capacity = ranks * most;
  const std::size_t local = local_experts(rank, ranks);
  expect_equal(received.recv_x.shape[0], static_cast<std::int64_t>(local), "local experts");
  expect_equal(received.recv_x.dtype_code, fp8 ? PEERBUS_FLOAT8_E4M3FN : PEERBUS_BFLOAT, "type");
  const auto* const counts = static_cast<const std::int32_t*>(received.recv_count.data);
  append(result, counts, local * sizeof *counts);
  append_rows(result, received.recv_x.data, hidden * (fp8 ? 1 : 2),
              static_cast<const float*>(received.recv_x_scales.data), local, capacity,
              [&](std::size_t e) { return static_cast<std::size_t>(counts[e]); });

  std::vector<bf16> y(local * capacity * hidden);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = bf16{static_cast<float>(i % 97)};
  const tensor outputs{y.data(), PEERBUS_BFLOAT, 16, {local, capacity, hidden}};
  peerbus_low_latency_combine_args home{};
  home.struct_bytes = sizeof home;
  home.x = &outputs;
  home.topk_idx = &input.ids;
  home.topk_weights = &input.weights;
  home.handle = received.result;
  home.return_recv_hook = hooks ? 1 : 0;
  peerbus_combined combined{};
  combined.struct_bytes = sizeof combined;
  ok(peerbus_low_latency_combine(buffer, &home, &combined), "combine");
  ok(peerbus_result_wait(combined.result), "wait");
  append(result, combined.combined_x.data, input.in.count * hidden * sizeof(bf16));
  peerbus_result_destroy(&received.result);
  peerbus_buffer_destroy(&buffer);
  peerbus_result_destroy(&combined.result);  // A result may outlive its buffer.
  peerbus_result_destroy(&combined.result);
}

void low_latency_by_cpp(peerbus::bootstrap& boot, bool fp8, outcome& result) {
  peerbus::communicator<bus> comm{bus{peerbus::loopback{boot}}};
  deep_ep::buffer<bus> buffer{comm};
  const std::size_t ranks = comm.size();
  const batch in{comm.rank().index(), ranks};
  const auto received =
      buffer.low_latency_dispatch({.x = deep_ep::view(in.x, {in.count, hidden}),
                                   .topk_idx = deep_ep::view(in.ids, {in.count, top_k}),
                                   .num_max_dispatch_tokens_per_rank = most,
                                   .num_experts = experts,
                                   .use_fp8 = fp8});
  const std::size_t capacity = ranks * most;
  const std::size_t local = received.recv_x.size(0);
  const auto* const counts = received.recv_count.as<std::int32_t>();
  append(result, counts, local * sizeof *counts);
  append_rows(result, received.recv_x.data(), hidden * (fp8 ? 1 : 2),
              fp8 ? received.recv_x_scales.as<float>() : nullptr, local, capacity,
              [&](std::size_t e) { return static_cast<std::size_t>(counts[e]); });
  std::vector<bf16> y(local * capacity * hidden);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = bf16{static_cast<float>(i % 97)};
  const auto combined =
      buffer.low_latency_combine({.x = deep_ep::view(y, {local, capacity, hidden}),
                                  .topk_idx = deep_ep::view(in.ids, {in.count, top_k}),
                                  .topk_weights = deep_ep::view(in.weights, {in.count, top_k}),
                                  .handle = received.handle});
  append(result, combined.combined_x.data(), in.count * hidden * sizeof(bf16));
}

void normal_by_c(peerbus_comm* comm, outcome& result) {
  const std::size_t rank = peerbus_comm_rank(comm);
  peerbus_buffer* buffer = nullptr;
  peerbus_buffer_options options{};
  options.struct_bytes = sizeof options;
  options.num_max_tokens_per_rank = most;
  ok(peerbus_buffer_create(comm, &options, &buffer), "buffer");
  const batch in{rank, peerbus_comm_size(comm)};
  const tensor x{in.x.data(), PEERBUS_BFLOAT, 16, {in.count, hidden}};
  const tensor ids{in.ids.data(), PEERBUS_INT, 64, {in.count, top_k}};
  const tensor weights{in.weights.data(), PEERBUS_FLOAT, 32, {in.count, top_k}};
  peerbus_dispatch_layout layout{};
  layout.struct_bytes = sizeof layout;
  ok(peerbus_get_dispatch_layout(buffer, &ids, experts, &layout), "layout");
  const peerbus_tensor per_rank = peerbus_tensor_of(&layout.num_tokens_per_rank);
  const peerbus_tensor per_expert = peerbus_tensor_of(&layout.num_tokens_per_expert);
  const peerbus_tensor in_rank = peerbus_tensor_of(&layout.is_token_in_rank);
  peerbus_normal_dispatch_args args{};
  args.struct_bytes = sizeof args;
  args.x = &x;
  args.num_tokens_per_rank = &per_rank;
  args.num_tokens_per_expert = &per_expert;
  args.is_token_in_rank = &in_rank;
  args.topk_idx = &ids;
  args.topk_weights = &weights;
  peerbus_normal_received received{};
  received.struct_bytes = sizeof received;
  ok(peerbus_normal_dispatch(buffer, &args, &received), "dispatch");
  const auto rows = static_cast<std::size_t>(received.recv_x.shape[0]);
  append(result, received.recv_x.data, rows * hidden * sizeof(bf16));
  append(result, received.recv_topk_idx.data, rows * top_k * sizeof(std::int64_t));
  append(result, received.recv_topk_weights.data, rows * top_k * sizeof(float));
  append(result, received.recv_src_idx.data, rows * sizeof(std::int32_t));
  const peerbus_array& counts = received.num_recv_tokens_per_expert_list;
  expect_equal(counts.shape[0],
               static_cast<std::int64_t>(local_experts(rank, peerbus_comm_size(comm))), "experts");
  append(result, counts.data, static_cast<std::size_t>(counts.shape[0]) * sizeof(std::int32_t));

  const tensor outputs{received.recv_x.data, PEERBUS_BFLOAT, 16, {rows, hidden}};
  peerbus_normal_combine_args home{};
  home.struct_bytes = sizeof home;
  home.x = &outputs;
  home.handle = layout.result;
  peerbus_combined combined{};
  combined.struct_bytes = sizeof combined;
  fails(peerbus_normal_combine(buffer, &home, &combined), PEERBUS_INVALID_ARGUMENT,
        "result of another call");
  home.handle = received.result;
  home.bias[1] = &x;
  ok(peerbus_normal_combine(buffer, &home, &combined), "combine");
  append(result, combined.combined_x.data, in.count * hidden * sizeof(bf16));
  for (peerbus_result** left : {&layout.result, &received.result, &combined.result})
    peerbus_result_destroy(left);
  peerbus_buffer_destroy(&buffer);
}

void normal_by_cpp(peerbus::bootstrap& boot, outcome& result) {
  peerbus::communicator<bus> comm{bus{peerbus::loopback{boot}}};
  deep_ep::buffer<bus> buffer{comm, {.num_max_tokens_per_rank = most}};
  const batch in{comm.rank().index(), comm.size()};
  const auto ids = deep_ep::view(in.ids, {in.count, top_k});
  const auto x = deep_ep::view(in.x, {in.count, hidden});
  const auto layout = buffer.get_dispatch_layout(ids, experts);
  const auto received =
      buffer.dispatch({.x = x,
                       .num_tokens_per_rank = layout.num_tokens_per_rank,
                       .is_token_in_rank = layout.is_token_in_rank,
                       .num_tokens_per_expert = layout.num_tokens_per_expert,
                       .topk_idx = ids,
                       .topk_weights = deep_ep::view(in.weights, {in.count, top_k})});
  const std::size_t rows = received.recv_x.size(0);
  append(result, received.recv_x.data(), rows * hidden * sizeof(bf16));
  append(result, received.recv_topk_idx.data(), rows * top_k * sizeof(std::int64_t));
  append(result, received.recv_topk_weights.data(), rows * top_k * sizeof(float));
  append(result, received.handle.recv_src_idx.data(), rows * sizeof(std::int32_t));
  const auto counts = received.num_recv_tokens_per_expert_list;
  append(result, counts.data(), counts.size_bytes());
  const auto combined =
      buffer.combine({.x = received.recv_x, .handle = received.handle, .bias = {{{}, x}}});
  append(result, combined.combined_x.data(), in.count * hidden * sizeof(bf16));
}

/// Requires that both interfaces give the same bytes to each rank.
template <class ByC, class ByCpp>
void compare(std::size_t ranks, ByC&& by_c, ByCpp&& by_cpp) {
  std::vector<outcome> c(ranks);
  std::vector<outcome> cpp(ranks);
  CHECK(embed_c::run(ranks, kind::threads,
                     [&](peerbus_comm* comm) { by_c(comm, c[peerbus_comm_rank(comm)]); }) == 0);
  CHECK(peerbus::run_threads(
            ranks, [&](peerbus::bootstrap& boot) { by_cpp(boot, cpp[boot.rank().index()]); }) == 0);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    CHECK(!c[rank].empty());
    CHECK(c[rank] == cpp[rank]);
  }
}

}  // namespace

TEST_CASE("low-latency calls through C give the bytes of C++") {
  for (const std::size_t n : {1U, 3U})
    for (const bool fp8 : {false, true})
      for (const bool hooks : {false, true})
        compare(
            n, [&](auto* comm, auto& result) { low_latency_by_c(comm, fp8, hooks, result); },
            [&](auto& boot, auto& result) { low_latency_by_cpp(boot, fp8, result); });
}

TEST_CASE("ids of num_experts and more through C: refused, or skipped if asked for") {
  const int status = embed_c::run(1, kind::threads, [](peerbus_comm* comm) {
    const std::int64_t given[]{0, experts, -7, 3};
    const tensor ids{given, PEERBUS_INT, 64, {2, 2}};
    for (const std::uint32_t skips : {0U, 1U}) {
      peerbus_buffer_options options{};
      options.struct_bytes = sizeof options;
      options.skip_other_ids = skips;
      peerbus_buffer* buffer = nullptr;
      ok(peerbus_buffer_create(comm, &options, &buffer), "buffer");
      peerbus_dispatch_layout layout{};
      layout.struct_bytes = sizeof layout;
      const peerbus_code code = peerbus_get_dispatch_layout(buffer, &ids, experts, &layout);
      if (skips == 0) {
        fails(code, PEERBUS_INVALID_ARGUMENT, "topk_idx has 5 for token 0, slot 1");
      } else {
        ok(code, "layout");
        const auto* const counts =
            static_cast<const std::int32_t*>(layout.num_tokens_per_expert.data);
        const std::vector<std::int32_t> expected{1, 0, 0, 1, 0};
        expect(std::vector<std::int32_t>(counts, counts + experts) == expected, "counts");
      }
      peerbus_result_destroy(&layout.result);
      peerbus_buffer_destroy(&buffer);
    }
    // A program of a version without the choice.
    peerbus_buffer_options old{};
    old.struct_bytes = offsetof(peerbus_buffer_options, skip_other_ids);
    old.skip_other_ids = 1;
    peerbus_buffer* buffer = nullptr;
    ok(peerbus_buffer_create(comm, &old, &buffer), "buffer of old options");
    peerbus_dispatch_layout layout{};
    layout.struct_bytes = sizeof layout;
    fails(peerbus_get_dispatch_layout(buffer, &ids, experts, &layout), PEERBUS_INVALID_ARGUMENT,
          "topk_idx has 5");
    peerbus_buffer_destroy(&buffer);
  });
  CHECK(status == 0);
}

TEST_CASE("more tokens of one rank than the buffer has memory for, through C") {
  const int status = embed_c::run(2, kind::threads, [](peerbus_comm* comm) {
    const bool has_many = peerbus_comm_rank(comm) == 1;
    peerbus_buffer_options options{};
    options.struct_bytes = sizeof options;
    options.num_max_tokens_per_rank = 4;
    peerbus_buffer* buffer = nullptr;
    ok(peerbus_buffer_create(comm, &options, &buffer), "buffer");
    const auto dispatch = [&](std::size_t count, std::uint64_t bound, std::size_t args_bytes) {
      const std::vector<bf16> rows(count * hidden, bf16{2.0F});
      std::vector<std::uint8_t> in_rank(count * 2, 1);
      const auto tokens = static_cast<std::int32_t>(count);
      const std::int32_t per_rank[]{tokens, tokens};
      const std::int32_t per_expert[]{tokens};
      const tensor x{rows.data(), PEERBUS_BFLOAT, 16, {count, hidden}};
      const tensor to_ranks{per_rank, PEERBUS_INT, 32, {2}};
      const tensor to_experts{per_expert, PEERBUS_INT, 32, {1}};
      const tensor goes{in_rank.data(), PEERBUS_BOOL, 8, {count, 2}};
      peerbus_normal_dispatch_args args{};
      args.struct_bytes = static_cast<std::uint32_t>(args_bytes);
      args.x = &x;
      args.num_tokens_per_rank = &to_ranks;
      args.num_tokens_per_expert = &to_experts;
      args.is_token_in_rank = &goes;
      args.num_max_tokens_per_rank = bound;
      peerbus_normal_received received{};
      received.struct_bytes = sizeof received;
      const peerbus_code code = peerbus_normal_dispatch(buffer, &args, &received);
      const std::uint64_t room = received.num_max_tokens_per_rank;
      if (code == PEERBUS_OK) expect(received.recv_x.shape[0] >= 2, "rows of both ranks");
      peerbus_result_destroy(&received.result);
      return std::pair{code, room};
    };
    constexpr std::size_t now = sizeof(peerbus_normal_dispatch_args);
    constexpr std::size_t before = offsetof(peerbus_normal_dispatch_args, num_max_tokens_per_rank);
    const auto expect_room = [](std::pair<peerbus_code, std::uint64_t> made, std::uint64_t room) {
      ok(made.first, "dispatch");
      expect_equal(made.second, room, "num_max_tokens_per_rank");
    };
    expect_room(dispatch(2, 0, now), 4);
    expect_room(dispatch(has_many ? 9 : 2, 0, now), 16);
    expect_room(dispatch(2, 0, now), 16);
    expect_room(dispatch(2, 3, now), 3);
    expect_room(dispatch(2, 3, before), 16);  // A program of a version without the member.
    fails(dispatch(has_many ? 4 : 2, 3, now).first,
          has_many ? PEERBUS_INVALID_ARGUMENT : PEERBUS_REFUSED,
          "x has 4 tokens, expected at most num_max_tokens_per_rank, 3");
    fails(dispatch(2, has_many ? 3 : 2, now).first, PEERBUS_MISMATCH,
          "num_max_tokens_per_rank is 2 on rank 0 but 3 on rank 1");
    expect_room(dispatch(2, 0, now), 16);
    peerbus_buffer_destroy(&buffer);
  });
  CHECK(status == 0);
}

TEST_CASE("normal calls through C give the bytes of C++") {
  for (const std::size_t n : {1U, 3U}) compare(n, normal_by_c, normal_by_cpp);
}

TEST_CASE("DeepEP's calls among processes, of one host and of two") {
  for (const kind how : {kind::processes, kind::hosts})
    CHECK(embed_c::run(how == kind::hosts ? 3 : 2, how, [](peerbus_comm* comm) {
            outcome result;
            low_latency_by_c(comm, true, true, result);
            normal_by_c(comm, result);
          }) == 0);
}

TEST_CASE("arguments of DeepEP's calls that cannot be used") {
  CHECK(peerbus_low_latency_rdma_size_hint(128, 7168, 8, 288) ==
        deep_ep::low_latency_rdma_size_hint(128, 7168, 8, 288));
  CHECK(embed_c::run(1, kind::threads, [](peerbus_comm* comm) {
          peerbus_buffer* buffer = nullptr;
          peerbus_buffer_options options{};
          options.struct_bytes = sizeof options;
          options.target = 6;
          fails(peerbus_buffer_create(comm, &options, &buffer), PEERBUS_INVALID_ARGUMENT, "target");
          fails(peerbus_buffer_create(nullptr, nullptr, &buffer), PEERBUS_INVALID_ARGUMENT,
                "communicator is NULL");
          options.target = PEERBUS_ASCEND_A3;
          options.relay = 3;
          fails(peerbus_buffer_create(comm, &options, &buffer), PEERBUS_INVALID_ARGUMENT,
                "relay is 3, expected 0 to 2");
          options.relay = PEERBUS_RELAY_AUTOMATIC;
          ok(peerbus_buffer_create(comm, &options, &buffer), "create");

          low_latency_input input{0, 1};
          tensor& x = input.x;
          auto args = input.args();
          peerbus_low_latency_received received{};
          received.struct_bytes = sizeof received;
          const auto refused = [&](std::string_view fragment) {
            fails(peerbus_low_latency_dispatch(buffer, &args, &received), PEERBUS_INVALID_ARGUMENT,
                  fragment);
            expect(received.result == nullptr, "no result");
          };
          refused("ascend_a3 refuses");
          x.dtype_code = PEERBUS_FLOAT;
          refused("x: DLPack's type code 2 with 16 bits");
          x.dtype_code = PEERBUS_BFLOAT;
          x.device_type = 2;
          refused("x is on DLPack's device type 2");
          x.device_type = 1;
          x.ndim = 4;
          refused("x has 4 dimensions");
          x.ndim = 2;
          x.sizes[1] = -1;
          refused("x: size -1");
          x.sizes[1] = hidden;
          x.data = nullptr;
          refused("x: data is NULL");
          x.data = const_cast<bf16*>(input.in.x.data());
          x.byte_offset = 1;
          refused("x is not aligned");
          x.byte_offset = 0;
          args.topk_idx = nullptr;
          refused("topk_idx");
          args.struct_bytes = 4;
          refused("struct_bytes");
          fails(peerbus_low_latency_dispatch(nullptr, &args, &received), PEERBUS_INVALID_ARGUMENT,
                "buffer is NULL");
          fails(peerbus_low_latency_dispatch(buffer, nullptr, &received), PEERBUS_INVALID_ARGUMENT,
                "args is NULL");
          args.struct_bytes = sizeof args;
          fails(peerbus_low_latency_dispatch(buffer, &args, nullptr), PEERBUS_INVALID_ARGUMENT,
                "received is NULL");
          fails(peerbus_result_wait(nullptr), PEERBUS_INVALID_ARGUMENT, "result is NULL");
          fails(peerbus_low_latency_mask(buffer, 0, 1), PEERBUS_INVALID_ARGUMENT, "enable_shrink");
          peerbus_buffer_destroy(&buffer);
          peerbus_buffer_destroy(&buffer);
        }) == 0);
}

TEST_CASE("what one rank gives differently or wrongly to DeepEP's calls is refused on all") {
  for (const kind how : {kind::threads, kind::processes})
    CHECK(
        embed_c::run(3, how, [](peerbus_comm* comm) {
          const std::size_t rank = peerbus_comm_rank(comm);
          const bool differs = rank == 1;
          peerbus_buffer* buffer = nullptr;
          ok(peerbus_buffer_create(comm, nullptr, &buffer), "create");
          const low_latency_input input{rank, 3};
          const batch& in = input.in;
          const auto good = input.args();
          peerbus_low_latency_received received{};
          received.struct_bytes = sizeof received;
          const auto call = [&](const peerbus_low_latency_dispatch_args& args) {
            return peerbus_low_latency_dispatch(buffer, &args, &received);
          };
          const auto dispatch = [&] {
            ok(call(good), "dispatch");
            peerbus_result_destroy(&received.result);
          };
          const auto refused = [&](std::string_view text, auto&& change) {
            auto args = good;
            if (differs) change(args);
            fails(call(args), differs ? PEERBUS_INVALID_ARGUMENT : PEERBUS_REFUSED, text);
            dispatch();
          };
          const auto mismatch = [&](std::string_view text, auto&& change) {
            auto args = good;
            if (differs) change(args);
            fails(call(args), PEERBUS_MISMATCH, text);
            dispatch();
          };
          refused("x: DLPack's type code 2 with 16 bits", [&](auto& args) {
            static thread_local tensor odd{in.x.data(), PEERBUS_FLOAT, 16, {1, hidden}};
            args.x = &odd;
          });
          mismatch("num_topk is 2 on rank 0 but 1 on rank 1", [&](auto& args) {
            static thread_local tensor none{nullptr, PEERBUS_BFLOAT, 16, {0, hidden}};
            static thread_local tensor idle{nullptr, PEERBUS_INT, 64, {0, 1}};
            args.x = &none;
            args.topk_idx = &idle;
          });
          mismatch("num_max_dispatch_tokens_per_rank is 6 on rank 0 but 7 on rank 1",
                   [](auto& args) { args.num_max_dispatch_tokens_per_rank = 7; });
          mismatch("use_fp8 is false on rank 0 but true on rank 1",
                   [](auto& args) { args.use_fp8 = 1; });
          refused("x: size -4", [&](auto& args) {
            static thread_local tensor negative{in.x.data(), PEERBUS_BFLOAT, 16, {1, hidden}};
            negative.sizes[0] = -4;
            args.x = &negative;
          });
          refused("struct_bytes is 4", [](auto& args) { args.struct_bytes = 4; });
          refused("topk_idx is none", [](auto& args) { args.topk_idx = nullptr; });
          if (differs)
            ok(peerbus_buffer_refuse(buffer, 1, "the model was not loaded", 0), "refuse");
          else
            fails(call(good), PEERBUS_REFUSED, "rank 1 was given bad arguments: the model was");

          ok(call(good), "dispatch");
          const tensor outputs{
              received.recv_x.data, PEERBUS_BFLOAT, 16, {local_experts(rank, 3), 3 * most, hidden}};
          const tensor floats{in.x.data(), PEERBUS_FLOAT, 32, {1, 1, hidden}};
          peerbus_low_latency_combine_args home{};
          home.struct_bytes = sizeof home;
          home.x = differs ? &floats : &outputs;
          home.topk_idx = &input.ids;
          home.topk_weights = &input.weights;
          home.handle = received.result;
          peerbus_combined combined{};
          combined.struct_bytes = sizeof combined;
          fails(peerbus_low_latency_combine(buffer, &home, &combined),
                differs ? PEERBUS_INVALID_ARGUMENT : PEERBUS_REFUSED,
                "low_latency_combine: x is float32 [1, 1, 128], expected bfloat16");
          home.x = &outputs;
          ok(peerbus_low_latency_combine(buffer, &home, &combined), "combine");
          peerbus_result_destroy(&combined.result);
          peerbus_result_destroy(&received.result);
          peerbus_buffer_destroy(&buffer);
        }) == 0);
}

TEST_CASE("a buffer whose hook waits in another thread is in a call") {
  struct meeting {
    peerbus_buffer* buffer;
    peerbus_window* window;
    const peerbus_low_latency_dispatch_args* args;
    int times;
  };
  CHECK(
      embed_c::run(2, kind::threads, [](peerbus_comm* comm) {
        const std::size_t rank = peerbus_comm_rank(comm);
        peerbus_buffer* buffer = nullptr;
        ok(peerbus_buffer_create(comm, nullptr, &buffer), "buffer");
        peerbus_window* window = nullptr;
        ok(peerbus_window_create(comm, 8, 1, 0, &window), "window");
        const low_latency_input input{rank, 2};
        auto args = input.args();
        args.return_recv_hook = 1;
        peerbus_low_latency_received received{};
        received.struct_bytes = sizeof received;
        ok(peerbus_low_latency_dispatch(buffer, &args, &received), "first dispatch");
        ok(peerbus_result_wait(received.result), "first hook");
        peerbus_result_destroy(&received.result);
        meeting met{buffer, window, &args, 0};
        if (rank == 0) {
          // Is called while rank 0 waits in its hook for rank 1, which dispatches after this.
          const auto interrupt = [](void* context) -> std::int32_t {
            auto& m = *static_cast<meeting*>(context);
            if (m.times++ != 0) return 0;
            std::string text;
            std::thread{[&] {
              peerbus_low_latency_received second{};
              second.struct_bytes = sizeof second;
              if (peerbus_low_latency_dispatch(m.buffer, m.args, &second) ==
                  PEERBUS_INVALID_ARGUMENT)
                text = peerbus_last_error();
              if (peerbus_window_signal(m.window, 1, 0, 1) != PEERBUS_OK) text += "; signal";
            }}.join();
            return text.find("the buffer is in another call") == std::string::npos ? 1 : 0;
          };
          ok(peerbus_low_latency_dispatch(buffer, &args, &received), "dispatch");
          ok(peerbus_comm_set_interrupt(comm, interrupt, &met), "set_interrupt");
        } else {
          ok(peerbus_window_wait(window, 0, 1, PEERBUS_ANY_RANK, std::int64_t{20} * 1'000'000'000),
             "wait");
          ok(peerbus_low_latency_dispatch(buffer, &args, &received), "dispatch");
        }
        ok(peerbus_result_wait(received.result), "hook");
        ok(peerbus_comm_set_interrupt(comm, nullptr, nullptr), "set_interrupt");
        expect(rank != 0 || met.times != 0, "a refused call");
        peerbus_buffer_destroy(&buffer);
        // The flag outlives the buffer: what is wrong is that it is gone.
        fails(peerbus_result_wait(received.result), PEERBUS_INVALID_ARGUMENT, "its buffer is gone");
        peerbus_result_destroy(&received.result);
        peerbus_window_destroy(&window);
      }) == 0);
}

TEST_CASE("masks of ranks through C") {
  CHECK(embed_c::run(3, kind::threads, [](peerbus_comm* comm) {
          peerbus_buffer_options options{};
          options.struct_bytes = sizeof options;
          options.enable_shrink = 1;
          peerbus_buffer* buffer = nullptr;
          ok(peerbus_buffer_create(comm, &options, &buffer), "create");
          std::array<std::int32_t, 3> masks{9, 9, 9};
          const tensor status{masks.data(), PEERBUS_INT, 32, {masks.size()}};
          ok(peerbus_low_latency_mask(buffer, 1, 1), "mask");
          ok(peerbus_low_latency_masks(buffer, &status), "masks");
          expect(masks == std::array<std::int32_t, 3>{0, 1, 0}, "rank 1 is masked");
          peerbus_buffer_destroy(&buffer);
        }) == 0);
}

}  // namespace deep_ep_test
