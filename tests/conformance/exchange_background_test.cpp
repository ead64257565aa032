// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
//
// Exchanges over a transport that reads sources and writes targets in a thread of its own: under
// ThreadSanitizer, everything that an exchange overwrites must have been proven to be read.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>

#include "conformance/exchange_suite.hpp"
#include "conformance/in_flight_suite.hpp"
#include "conformance/lanes_suite.hpp"
#include "conformance/layout_suite.hpp"
#include "support/background.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace exchange_background_test {

namespace {

using peerbus::bf16;
using peerbus::codec::int8_per_token;
using group =
    test::any_over<peerbus::any_transport, test::threads_over<test::background<peerbus::loopback>>>;

}  // namespace

TEST_CASE("all shapes and layouts") {
  for (const std::size_t n : {1U, 2U, 3U, 5U}) conformance::check_layouts<group, int8_per_token>(n);
  conformance::check_long_rows<group, peerbus::codec::bf16>(3);
}

TEST_CASE("several exchanges on one communicator, interleaved") {
  for (const std::size_t n : {2U, 4U}) conformance::check_interleaved<group>(n);
}

TEST_CASE("batches in flight, refused ones and given up ones among them") {
  for (const std::size_t n : {1U, 2U, 3U, 4U}) {
    conformance::check_chosen_orders<group, int8_per_token>(n);
    conformance::check_random_orders<group, int8_per_token>(n, 150, 3);
    conformance::check_random_orders<group, int8_per_token, peerbus::moe::slots>(n, 150, 3);
  }
}

TEST_CASE("outputs are written anew after a combine that another rank refused") {
  for (const std::size_t ranks : {2U, 3U}) {
    CAPTURE(ranks);
    const int worst_status = group::run(ranks, [](auto& comm) {
      const peerbus::moe::exchange_config config{
          .experts = 6, .hidden = 64, .top_k = 2, .max_tokens = 8};
      peerbus::moe::exchange moe{comm, config, int8_per_token{}};
      const std::size_t me = comm.rank().index();
      for (std::uint64_t round = 0; round < 20; ++round) {
        const auto mine = oracle::make_input({comm.size(), config.experts, config.hidden, 2}, me, 8,
                                             oracle::routes::uniform, round);
        const auto got = moe.dispatch(mine.tokens, {mine.experts, mine.weights});
        std::vector<bf16> out(mine.tokens.size());
        for (std::size_t attempt = 0; attempt < 4; ++attempt) {
          for (const auto& expert : got.experts())
            for (bf16& value : expert.outputs()) value = bf16{static_cast<float>(1 + attempt)};
          const bool good = attempt == 3;
          if (good) {
            moe.combine(got, out);
          } else {
            const bool bad = attempt % comm.size() == me;
            test::expect_error(bad ? peerbus::errc::invalid_argument : peerbus::errc::refused,
                               {"combine"},
                               [&] { moe.combine(got, bad ? std::span<bf16>{} : std::span{out}); });
          }
        }
        for (std::size_t t = 0; t < mine.count; ++t) {
          float expected = 0;
          for (std::size_t k = 0; k < 2; ++k)
            if (mine.experts[t * 2 + k] >= 0) expected += 4 * mine.weights[t * 2 + k];
          const auto value = static_cast<float>(out[t * config.hidden]);
          test::expect(std::abs(value - expected) <= 0.01F * std::abs(expected), "token ", t,
                       " to be ", expected, ", is ", value);
        }
      }
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("several lanes") {
  for (const std::size_t ranks : {2U, 3U})
    for (const std::size_t lanes : {2U, 3U})
      conformance::check_lanes_all_layouts<group>(ranks, lanes, 8);
}

}  // namespace exchange_background_test
