// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/relay.hpp>
#include <peerbus/moe/two_level_exchange.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/simulated.hpp>

#include "conformance/exchange_suite.hpp"
#include "simulated/support.hpp"
#include "support/exchange_check.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"
#include "support/two_level_check.hpp"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // Of `two_level_exchange`.

// Exchanges in which ranks of a simulated node store to each other's memory.

namespace relay_test {

namespace {

using peerbus::any_transport;
using peerbus::communicator;
using peerbus::simulated;
using peerbus::simulation_options;
using peerbus::codec::int8_per_token;
using peerbus::moe::relay;
using simulated_test::nodes_of;
using std::chrono::nanoseconds;

struct grid {
  std::size_t nodes;
  std::size_t ranks;  ///< of a node
};

/// Runs `body(comm)` in order and with delays of three seeds. Returns the worst status.
template <class Body>
int in_several_orders(grid machine, Body body) {
  test::pretended = {machine.nodes, false};
  int worst = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    simulation_options options = nodes_of(machine.ranks);
    options.seed = seed;
    options.jitter =
        std::array{nanoseconds{0}, nanoseconds{300}, nanoseconds{3000}, nanoseconds{20'000}}[seed];
    worst = std::max(worst, peerbus::run_simulated(
                                machine.nodes * machine.ranks,
                                [&](peerbus::bootstrap& boot) {
                                  communicator<any_transport> comm{any_transport{simulated{boot}}};
                                  body(comm);
                                },
                                options));
  }
  return worst;
}

template <class Layout>
void relay_rounds(communicator<any_transport>& comm) {
  constexpr conformance::exchange_case shape{
      24, 64, 4, 6, oracle::routes::zipf, conformance::counts::uneven, {12}};
  peerbus::moe::two_level_exchange moe{comm, conformance::config_of(shape), relay::always,
                                       int8_per_token{}, Layout{}};
  test::expect(moe.chosen().relays, "two levels");
  for (std::uint64_t seed = 0; seed < 2; ++seed)
    test::two_levels::check_round(moe, conformance::make_scenario(shape, comm.size(), seed),
                                  comm.rank());
}

}  // namespace

TEST_CASE("relay among nodes, in several orders") {
  for (const grid machine : {grid{2, 2}, {2, 4}, {3, 2}, {3, 3}}) {
    CAPTURE(machine.nodes);
    CAPTURE(machine.ranks);
    CHECK(in_several_orders(machine, relay_rounds<peerbus::moe::compact>) == 0);
  }
}

TEST_CASE_TEMPLATE("relay among nodes: all layouts", Layout, peerbus::moe::padded,
                   peerbus::moe::rank_major, peerbus::moe::slots, peerbus::moe::expert_slots) {
  for (const grid machine : {grid{2, 3}, {3, 4}})
    CHECK(in_several_orders(machine, relay_rounds<Layout>) == 0);
}

TEST_CASE("near ranks by stores, far ones by puts, in several orders") {
  CHECK(in_several_orders({2, 3}, [](auto& comm) {
          conformance::run_case<int8_per_token>(comm, {12, 64, 4, 8, oracle::routes::zipf},
                                                peerbus::moe::compact{}, 3);
        }) == 0);
}

namespace {

/// Returns how long a dispatch and a combine take among the four ranks of a node, whose tokens go
/// to the rank `distance` further on.
std::array<nanoseconds, 2> times_in_node(std::size_t near_levels, double gb_per_s,
                                         double copy_gb_per_s = 0, std::size_t distance = 1) {
  simulation_options options = nodes_of(4);
  options.platform.near_levels = near_levels;
  options.platform.levels[0].gb_per_s = gb_per_s;
  options.platform.costs.copy_gb_per_s = copy_gb_per_s;
  std::array<nanoseconds, 2> times{};
  const int status = peerbus::run_simulated(
      4,
      [&](peerbus::bootstrap& boot) {
        communicator<any_transport> comm{any_transport{simulated{boot}}};
        peerbus::moe::exchange moe{
            comm, {.experts = 4, .hidden = 4096, .top_k = 1, .max_tokens = 16}, int8_per_token{}};
        const std::vector<peerbus::bf16> tokens(std::size_t{16} * 4096);
        std::vector<peerbus::bf16> out(tokens.size());
        const std::vector<std::int32_t> experts(
            16, static_cast<std::int32_t>((comm.rank().index() + distance) % 4));
        const std::vector<float> weights(16, 1.0F);
        comm.barrier();
        const nanoseconds start = simulated::now();
        const auto rows = moe.dispatch(tokens, {experts, weights});
        const nanoseconds dispatched = simulated::now();
        moe.combine(rows, out);
        times = {dispatched - start, simulated::now() - dispatched};
      },
      options);
  CHECK(status == 0);
  return times;
}

}  // namespace

TEST_CASE("stores and loads of rows take the time of their bytes") {
  constexpr std::int64_t row_bytes = 16 * 4096;
  const auto by_puts = times_in_node(0, 1);
  const auto by_stores = times_in_node(1, 1);
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    CHECK(by_stores[i] > nanoseconds{static_cast<std::int64_t>(i + 1) * row_bytes});
    CHECK(by_stores[i] < by_puts[i] * 11 / 10);
  }
  CHECK(times_in_node(1, 100)[0] < by_stores[0] / 10);
}

TEST_CASE("a rank that copies rows itself is busy with its own ones, too") {
  constexpr std::int64_t row_bytes = 16 * 4096;
  for (const std::size_t distance : {0U, 1U}) {
    const auto by_engine = times_in_node(1, 1000, 0, distance);
    const auto by_rank = times_in_node(1, 1000, 1, distance);
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      CHECK(by_engine[i] < nanoseconds{row_bytes / 2});
      CHECK(by_rank[i] > nanoseconds{static_cast<std::int64_t>(i + 1) * row_bytes});
      CHECK(by_rank[i] < nanoseconds{static_cast<std::int64_t>(i + 1) * row_bytes * 12 / 10});
    }
  }
}

}  // namespace relay_test

#pragma GCC diagnostic pop
