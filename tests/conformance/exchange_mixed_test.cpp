// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/path/mixed_row_path.hpp>
#include <peerbus/moe/path/row_path_over.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "conformance/exchange_suite.hpp"
#include "conformance/in_flight_suite.hpp"
#include "conformance/layout_suite.hpp"
#include "support/exchange_check.hpp"
#include "support/grouped.hpp"
#include "support/partly_direct.hpp"
#include "support/ranks.hpp"

namespace exchange_mixed_test {

// Exchanges whose path is chosen per peer, against the same oracles as those with one path.

namespace {

using peerbus::rank_id;
using peerbus::codec::bf16;
using peerbus::codec::int8_per_token;
using two_planes = test::lazy_planes<2>;
using threads = test::threads_over<two_planes>;
using processes = test::processes_over<test::partly_direct<peerbus::unified_bus>>;

static_assert(
    std::same_as<peerbus::moe::row_path_over<peerbus::reach_by_type<two_planes>, bf16>::type,
                 peerbus::moe::mixed_row_path<bf16>>);

}  // namespace

TEST_CASE_TEMPLATE("near peers by stores, far ones by puts: all shapes", Codec, bf16,
                   int8_per_token) {
  for (const std::size_t n : test::sizes_for<threads>())
    conformance::check_shapes<threads, Codec>(n);
}

TEST_CASE("near peers by stores, far ones by puts: processes") {
  for (const std::size_t n : {2U, 3U, 5U}) conformance::check_shapes<processes, int8_per_token>(n);
}

TEST_CASE("near peers by stores, far ones by puts: every layout, attachments") {
  for (const std::size_t n : test::sizes_for<threads>())
    conformance::check_layouts<threads, int8_per_token>(n);
}

TEST_CASE("near peers by stores, far ones by puts: batches in flight, in any order") {
  for (const std::size_t n : {1U, 2U, 3U, 4U})
    conformance::check_random_orders<threads, int8_per_token>(n, 300, 4);
}

TEST_CASE("near peers by stores, far ones by puts: peers visited in another order") {
  const int worst_status = threads::run(4, [](auto& comm) {
    std::vector<rank_id> order{comm.peers().begin(), comm.peers().end()};
    std::ranges::reverse(order);
    peerbus::moe::exchange moe{
        comm, {.experts = 7, .hidden = 48, .top_k = 3, .max_tokens = 9}, int8_per_token{}};
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      if (seed == 2) comm.order_peers(order);
      static_cast<void>(test::check_round(
          moe, conformance::make_scenario({7, 48, 3, 9}, comm.size(), seed), comm.rank()));
    }
  });
  CHECK(worst_status == 0);
}

}  // namespace exchange_mixed_test
