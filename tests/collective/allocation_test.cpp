// SPDX-License-Identifier: MIT
// ctest: timeout=120
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/collective/all_gather.hpp>
#include <peerbus/collective/all_gather_coded.hpp>
#include <peerbus/collective/all_reduce.hpp>
#include <peerbus/collective/all_reduce_add.hpp>
#include <peerbus/collective/all_to_all.hpp>
#include <peerbus/collective/all_to_all_v.hpp>
#include <peerbus/collective/broadcast.hpp>
#include <peerbus/collective/channels.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/reduce_scatter.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/send_recv.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>

#include "support/counted_new.hpp"
#include "support/groups.hpp"
#include "support/ranks.hpp"

namespace allocation_test {

TEST_CASE_TEMPLATE("no operation allocates", Group, test::direct_threads, test::staged_threads) {
  namespace coll = peerbus::collective;
  for (const std::size_t n : {1U, 2U, 3U}) {
    const int worst_status = Group::run(n, [n](auto& comm) {
      coll::team on{comm, {.scratch_bytes = 8192, .one_shot_bytes = 256}};
      std::vector<peerbus::bf16> some(30);
      std::vector<peerbus::bf16> many(3000 * n);
      std::vector<peerbus::bf16> out(3000 * n);
      coll::channels pairs{comm, {.scratch_bytes = 8192}};
      const peerbus::rank_id next{(on.rank().index() + 1) % n};
      const peerbus::rank_id previous{(on.rank().index() + n - 1) % n};
      const std::vector<std::uint64_t> counts(n, 2999);
      const std::uint64_t before = test::allocations;
      coll::all_reduce(on, some, coll::sum{});
      coll::all_reduce(on, many, coll::sum{});
      coll::all_to_all(on, many, out);
      coll::broadcast(on, many, peerbus::rank_id{n - 1});
      const std::span<peerbus::bf16> part{out.data(), 3000};
      coll::reduce_scatter(on, many, part, coll::sum{});
      coll::all_gather(on, part, many);
      coll::all_to_all_v(on, many, {counts}, out, {counts});
      coll::batch_send_recv(pairs, {coll::recv_from(previous, out), coll::send_to(next, many)});
      coll::all_gather_coded(on, peerbus::codec::int8_per_token{}, 30, part, many);
      coll::all_reduce_add(on, out, out, out);
      coll::pending half = coll::start_all_reduce(on, many, coll::sum{});
      half.finish();
      half = coll::start_all_gather(on, part, many);
      half.finish();
      test::expect_equal(test::allocations - before, 0U, "allocations");
    });
    CHECK(worst_status == 0);
  }
}

}  // namespace allocation_test
