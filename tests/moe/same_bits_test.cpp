// SPDX-License-Identifier: MIT
// ctest: tsan every_build
#include "support/same_bits.hpp"

#include <cstddef>
#include <string_view>

#include <doctest/doctest.h>

#include <peerbus/codec/as_given.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/indirect.hpp"
#include "support/partly_direct.hpp"
#include "support/ranks.hpp"

namespace same_bits_test {
namespace {

namespace moe = peerbus::moe;
using same_bits::check_layouts;

using threads = test::any_over<peerbus::any_transport, test::threads_over<peerbus::loopback>,
                               test::threads_over<test::indirect<peerbus::loopback>>,
                               test::threads_over<test::partly_direct<peerbus::loopback>>>;
using processes =
    test::any_over<peerbus::any_transport, test::processes_over<peerbus::unified_bus>>;

}  // namespace

TEST_CASE("the bits of a token do not depend on ranks, batches, placement, layout or path") {
  for (const std::size_t ranks : {1U, 2U, 3U, 4U, 5U, 8U})
    check_layouts<peerbus::codec::int8_per_token, threads>(ranks, 10 * ranks);
  for (const std::size_t ranks : {1U, 3U, 8U})
    check_layouts<peerbus::codec::int8_per_token, processes>(ranks, 200 + 10 * ranks);
}

TEST_CASE("nor do those of a token that comes quantised") {
  for (const std::size_t ranks : {1U, 3U})
    check_layouts<peerbus::codec::fp8_e4m3_as_given, threads>(ranks, 10 * ranks);
}

TEST_CASE("nor on 64 ranks, of which most hold no expert of the token") {
  check_layouts<peerbus::codec::int8_per_token, processes>(64, 3);
}

TEST_CASE("what cannot keep the bits is refused by name, on all ranks") {
  using peerbus::errc;
  const int status = threads::run(2, [](auto& comm) {
    const moe::exchange_config config{
        .experts = 6, .hidden = 64, .top_k = 2, .max_tokens = 4, .same_bits = true};
    const auto refused = [&](const auto& layout, std::string_view text) {
      test::expect_error(errc::invalid_argument, {text}, [&] {
        moe::exchange{comm, config, peerbus::codec::int8_per_token{}, layout};
      });
    };
    refused(moe::rank_major{}, "same_bits with layout rank_major");
    refused(moe::slots{}, "same_bits with layout slots");
    auto only_one = config;
    only_one.same_bits = comm.rank().index() == 1;
    test::expect_error(errc::mismatch, {"same_bits"}, [&] {
      moe::exchange{comm, only_one, peerbus::codec::int8_per_token{}, moe::compact{}};
    });
  });
  CHECK(status == 0);
  const int over_planes =
      test::threads_over<test::partly_direct<peerbus::loopback>>::run(4, [](auto& typed) {
        peerbus::communicator comm{
            peerbus::any_transport{test::partly_direct<peerbus::loopback>{typed.bus().boot()}}};
        const moe::exchange_config config{.experts = 8,
                                          .hidden = 64,
                                          .top_k = 2,
                                          .max_tokens = 4,
                                          .relay = moe::relay::always,
                                          .same_bits = true};
        test::expect_error(errc::unsupported, {"relay is always, but", "same_bits"}, [&] {
          moe::exchange{comm, config, peerbus::codec::int8_per_token{}, moe::compact{}};
        });
      });
  CHECK(over_planes == 0);
}

}  // namespace same_bits_test
