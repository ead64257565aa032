// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/transport/any_transport.hpp>

#include "deep_ep/low_latency_oracle.hpp"
#include "deep_ep/low_latency_suite.hpp"
#include "support/counted_new.hpp"
#include "support/groups.hpp"
#include "support/ranks.hpp"
#include "support/repetitions.hpp"

namespace allocation_test {

// Once a shape has been used, its calls allocate nothing: every operator new of this program
// counts.

namespace {

using namespace low_latency_suite;
using test::allocations;

/// Pairs of calls in all manners; nothing is checked but the counter.
template <class Group>
void check_no_allocation(std::size_t ranks, bool zero_copy) {
  std::vector<batch> batches;
  for (const format rows : all_formats) {
    world of{.ranks = ranks, .experts = 2 * ranks, .hidden = 256, .top_k = 2, .max_tokens = 6};
    of.rows = rows;
    of.counts = static_cast<sizes>(batches.size() % 3);
    batches.push_back(make_batch(of, 5 + batches.size()));
  }
  const deep_ep::buffer_options options{.zero_copy = zero_copy, .enable_shrink = true};
  with_buffers<Group>(ranks, options, [&](auto& buffer, auto& comm) {
    const std::size_t rank = comm.rank().index();
    std::vector<flight<typename Group::transport>> all;
    all.reserve(48);
    for (std::uint64_t seed = 0; seed < 48; ++seed) {
      auto way = manner_of(seed, zero_copy);
      way.own_out = false;
      all.emplace_back(buffer, batches[seed % 4], rank, way);
    }
    // Once with all checks, which takes the memory of each shape.
    for (std::size_t i = 0; i < 4; ++i)
      flight<typename Group::transport>{buffer, batches[i], rank, {}}.fly();
    if (ranks > 1) buffer.low_latency_update_mask_buffer((rank + 1) % ranks, true);
    comm.barrier();
    const std::uint64_t before = allocations;
    for (std::size_t round = 0; round < test::repetitions(100, all.size()); ++round) {
      auto& one = all[round % all.size()];
      auto got = buffer.low_latency_dispatch(one.dispatch_args());
      if (got.hook) got.hook();
      got.event.current_stream_wait();
      one.got() = got;
      auto args = one.combine_args();
      if (args.zero_copy) args.x = buffer.get_next_low_latency_combine_buffer(got.handle);
      const auto back = buffer.low_latency_combine(args);
      if (back.hook) back.hook();
      back.event.current_stream_wait();
    }
    test::expect_equal(allocations - before, 0U, "allocations");
  });
}

}  // namespace

TEST_CASE("low latency: the counter counts") {
  const std::uint64_t before = allocations;
  const std::vector<int> vector(100);
  CHECK(allocations == before + 1);
}

TEST_CASE("low latency: dispatch and combine allocate nothing") {
  for (const std::size_t ranks : {1U, 2U, 4U})
    for (const bool zero_copy : {false, true}) {
      check_no_allocation<test::direct_threads>(ranks, zero_copy);
      check_no_allocation<test::staged_threads>(ranks, zero_copy);
      check_no_allocation<test::direct_processes>(ranks, zero_copy);
    }
}

namespace {

/// Layout, dispatch, combine, the same by handle, and combine once more.
void call_normally(deep_ep::buffer<peerbus::any_transport>& buffer, const std::vector<bf16>& x,
                   const std::vector<std::int64_t>& ids, const std::vector<float>& weights) {
  const deep_ep::const_tensor tokens = deep_ep::view(x, {4, 128});
  const auto layout = buffer.get_dispatch_layout(deep_ep::view(ids, {4, 2}), 4);
  const auto got = buffer.dispatch({.x = tokens,
                                    .num_tokens_per_rank = layout.num_tokens_per_rank,
                                    .is_token_in_rank = layout.is_token_in_rank,
                                    .num_tokens_per_expert = layout.num_tokens_per_expert,
                                    .topk_idx = deep_ep::view(ids, {4, 2}),
                                    .topk_weights = deep_ep::view(weights, {4, 2})});
  const auto combine = [&] {
    static_cast<void>(buffer.combine(
        {.x = got.recv_x, .handle = got.handle, .topk_weights = got.recv_topk_weights}));
  };
  combine();
  static_cast<void>(buffer.dispatch({.x = tokens, .handle = got.handle}));
  combine();
  combine();
}

}  // namespace

TEST_CASE("normal calls of a known shape allocate nothing") {
  const int status = test::direct_threads::run(2, [](auto& comm) {
    deep_ep::buffer<peerbus::any_transport> buffer{comm, {.num_max_tokens_per_rank = 4}};
    const std::vector<bf16> x(4 * 128, bf16{1.0F});
    const std::vector<std::int64_t> ids{0, 1, 2, 3, -1, 2, 1, 3};
    const std::vector<float> weights(8, 0.5F);
    for (int i = 0; i < 3; ++i) call_normally(buffer, x, ids, weights);
    const std::uint64_t before = allocations;
    for (std::uint64_t i = 0; i < test::repetitions(100); ++i)
      call_normally(buffer, x, ids, weights);
    test::expect_equal(allocations - before, 0U, "allocations");
  });
  CHECK(status == 0);
}

}  // namespace allocation_test
