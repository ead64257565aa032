// SPDX-License-Identifier: MIT
// ctest: many unsanitized serial timeout=300
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/groups.hpp"
#include "support/instances.hpp"
#include "support/ranks.hpp"

namespace large_group_test {

// Groups far above the 65 to 256 ranks at which other libraries stop, and the other way round: 2
// 048 experts, top-k 32, hidden 3 584. Rank and expert sets of more than 128 members come by
// themselves.

namespace {

using peerbus::bf16;
using peerbus::codec::int8_per_token;
namespace moe = peerbus::moe;

using threads = test::any_over<peerbus::any_transport, test::threads_over<peerbus::loopback>>;
using processes =
    test::any_over<peerbus::any_transport, test::processes_over<peerbus::unified_bus>>;

/// What an expert multiplies its rows by.
float factor(std::size_t expert) { return static_cast<float>(1 + expert % 3); }

/// The expert of slot `k` of token `t`: those of a token differ, as 61 and 2 048 have no common
/// divisor.
std::size_t expert_of(std::size_t rank, std::size_t t, std::size_t k, std::size_t experts) {
  return (rank * 37 + t * 11 + k * 61) % experts;
}

/// Two batches of 0 to `max_tokens` tokens on each rank; every sum is exact. Rows of one value are
/// exact in int8.
template <class Communicator>
void check(Communicator& comm, const moe::exchange_config& config) {
  moe::exchange exchange{comm, config, int8_per_token{}, moe::compact{}};
  const std::size_t rank = comm.rank().index();
  for (std::size_t round = 0; round < 2; ++round) {
    const std::size_t count = (rank + round) % (config.max_tokens + 1);
    std::vector<bf16> tokens;
    std::vector<std::int32_t> ids;
    for (std::size_t t = 0; t < count; ++t) {
      tokens.insert(tokens.end(), config.hidden, bf16{static_cast<float>(1 + (rank + t) % 5)});
      for (std::size_t k = 0; k < config.top_k; ++k)
        ids.push_back(static_cast<std::int32_t>(expert_of(rank + round, t, k, config.experts)));
    }
    const std::vector<float> weights(count * config.top_k, 0.25F);
    const auto received = exchange.dispatch(tokens, {ids, weights});
    std::vector<float> values(config.hidden);
    for (const auto& expert : received.experts())
      for (std::size_t row = 0; row < expert.count(); ++row) {
        expert.decode(row, values);
        for (std::size_t h = 0; h < config.hidden; ++h)
          expert.output(row)[h] = bf16{values[h] * factor(expert.id())};
      }
    std::vector<bf16> sums(tokens.size());
    exchange.combine(received, sums);
    for (std::size_t t = 0; t < count; ++t) {
      float all = 0;
      for (std::size_t k = 0; k < config.top_k; ++k)
        all += factor(expert_of(rank + round, t, k, config.experts)) / 4;
      const bf16 wanted{all * static_cast<float>(tokens[t * config.hidden])};
      for (std::size_t h = 0; h < config.hidden; ++h)
        test::expect_equal(sums[t * config.hidden + h].bits, wanted.bits, "channel ", h,
                           " of token ", t, " of rank ", rank);
    }
  }
}

}  // namespace

TEST_CASE("1 024 ranks as threads, 2 048 experts, top-k 32") {
  const int status = threads::run(1024, [](auto& comm) {
    check(comm, {.experts = 2048, .hidden = 64, .top_k = 32, .max_tokens = 1});
  });
  CHECK(status == 0);
}

TEST_CASE("320 ranks as processes, experts that do not divide, hidden 3 584") {
  const int status = processes::run(320, [](auto& comm) {
    check(comm, {.experts = 2047, .hidden = 3584, .top_k = 32, .max_tokens = 2});
  });
  CHECK(status == 0);
}

}  // namespace large_group_test
