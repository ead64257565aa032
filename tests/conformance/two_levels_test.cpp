// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/relay.hpp>
#include <peerbus/moe/two_level_exchange.hpp>
#include <peerbus/transport/loopback.hpp>

#include "conformance/exchange_suite.hpp"
#include "support/exchange_check.hpp"
#include "support/indirect.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"
#include "support/repetitions.hpp"
#include "support/two_level_check.hpp"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // Of `two_level_exchange`.

namespace two_levels_test {

// Tokens that cross once for each group, against an oracle of their own.

namespace {

using conformance::counts;
using conformance::exchange_case;
using oracle::routes;
using peerbus::codec::bf16;
using peerbus::codec::int8_per_token;
using peerbus::moe::relay;
using test::lazy_hosts;
using threads = test::threads_over<lazy_hosts>;

constexpr exchange_case cases[] = {
    {24, 64, 4, 9},
    {24, 64, 4, 9, routes::zipf, counts::full, {8, 0, 12}},
    {23, 48, 5, 6, routes::holes},  // experts do not divide
    {8, 48, 2, 5, routes::one_expert, counts::one_rank},
    {24, 48, 3, 5, routes::nowhere},
    {24, 48, 3, 5, routes::uniform, counts::none},
    {32, 64, 8, 7, routes::uniform, counts::uneven, {}, peerbus::moe::outputs_at::expert, 2}};

struct grid {
  std::size_t ranks;
  test::hosts hosts;
};
constexpr grid grids[] = {{1, {1, false}}, {4, {1, false}}, {3, {3, false}}, {4, {2, false}},
                          {6, {2, true}},  {5, {2, false}}, {6, {3, false}}, {8, {2, false}},
                          {8, {4, true}},  {7, {3, true}}};

template <class Codec, class Layout>
void check_all(std::span<const grid> grids_of) {
  for (const grid& one : grids_of) {
    CAPTURE(one.ranks);
    CAPTURE(one.hosts.count);
    test::pretended = one.hosts;
    const int worst_status = threads::run(one.ranks, [](auto& comm) {
      for (exchange_case shape : cases) {
        shape = conformance::fit<Codec>(shape);
        peerbus::moe::two_level_exchange moe{comm, conformance::config_of(shape), relay::always,
                                             oracle::codec_of<Codec>::make(), Layout{}};
        test::expect(moe.chosen().relays, "two levels");
        for (std::uint64_t seed = 0; seed < test::rounds(3); ++seed)
          test::two_levels::check_round(moe, conformance::make_scenario(shape, comm.size(), seed),
                                        comm.rank());
      }
    });
    CHECK(worst_status == 0);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("two levels: all codecs", Codec, bf16, int8_per_token,
                   peerbus::codec::fp8_e4m3_per_128_ue8m0) {
  check_all<Codec, peerbus::moe::compact>(grids);
}

TEST_CASE_TEMPLATE("two levels: all layouts", Layout, peerbus::moe::padded,
                   peerbus::moe::rank_major, peerbus::moe::slots, peerbus::moe::expert_slots) {
  check_all<int8_per_token, Layout>(std::span{grids}.subspan(4, 2));
}

}  // namespace two_levels_test

#pragma GCC diagnostic pop
