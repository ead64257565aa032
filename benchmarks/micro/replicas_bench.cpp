// SPDX-License-Identifier: MIT
//
// What replicas cost where load is even, so that they cannot save anything.
//   replica_choice          per_slot: the choice of the replica of one expert slot
//   dispatch_with_replicas  dispatches of 128 tokens on 2 ranks, which take turns:
//     dealt_ns              256 experts, dealt out equally
//     replicas_ns           the same experts, 32 of them with a second replica that takes turns
//     counted_ns            likewise, and each step's rows go into a window of 1000 steps
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/balance/expert_load.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/plan/replica_cycles.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "micro/batch.hpp"
#include "micro/blocks.hpp"
#include "micro/group.hpp"

namespace micro::replicas_bench {
namespace {

using codec = peerbus::codec::int8_per_token;
using peerbus::moe::replica_policy;

constexpr std::size_t experts = 256;
constexpr std::size_t spare = 16;  ///< of each rank
constexpr std::size_t tokens = 128;

/// The experts of each of `ranks` ranks, then the first ones of the next rank.
std::vector<std::uint32_t> with_spares(std::size_t ranks) {
  const std::size_t share = experts / ranks;
  std::vector<std::uint32_t> logical;
  logical.reserve(experts + ranks * spare);
  for (std::size_t r = 0; r < ranks; ++r)
    for (std::size_t i = 0; i < share + spare; ++i)
      logical.push_back(static_cast<std::uint32_t>((r * share + i) % experts));
  return logical;
}

void replica_choice(benchmark::State& state) {
  constexpr std::size_t ranks = 16;
  const auto logical = with_spares(ranks);
  const peerbus::moe::expert_map map{{.experts = experts, .physical_to_logical = logical}, ranks};
  const std::vector<std::uint32_t> distances(ranks);
  const peerbus::moe::replica_cycles cycles{
      map, {.policy = replica_policy::round_robin, .distances = distances}, peerbus::rank_id{3}};
  const micro::batch mine{tokens, 3, experts};
  std::vector<std::uint32_t> chosen(mine.ids.size());
  for (auto _ : state) {
    for (std::size_t t = 0; t < tokens; ++t)
      for (std::size_t k = 0; k < micro::top_k; ++k) {
        const std::size_t slot = t * micro::top_k + k;
        chosen[slot] = cycles.of(static_cast<std::size_t>(mine.ids[slot]), t);
      }
    benchmark::DoNotOptimize(chosen.data());
    benchmark::ClobberMemory();
  }
  state.counters["per_slot"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * static_cast<double>(chosen.size()),
      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void dispatch_with_replicas(benchmark::State& state) {
  constexpr std::size_t ranks = 2;
  const auto result = micro::run_group<peerbus::unified_bus>(
      state, ranks, [&](auto& comm, std::size_t operations, micro::found& found) {
        const micro::batch mine{tokens, comm.rank().index(), experts};
        peerbus::moe::exchange_config config{.experts = experts,
                                             .hidden = micro::hidden,
                                             .top_k = micro::top_k,
                                             .max_tokens = tokens};
        peerbus::moe::exchange dealt{comm, config, codec{}};
        const auto logical = with_spares(ranks);
        config.physical_to_logical = logical;
        config.replicas.policy = replica_policy::round_robin;
        peerbus::moe::exchange replicated{comm, config, codec{}};
        peerbus::moe::exchange counted{comm, config, codec{}};
        peerbus::moe::expert_load load{counted.placement(), 1000};
        std::vector<std::uint32_t> rows(logical.size());
        const auto dispatch = [&](auto& by) {
          return by.dispatch(mine.tokens, {mine.ids, mine.weights});
        };
        const auto count = [&](std::size_t times) {
          for (std::size_t i = 0; i < times; ++i) {
            counted.count_rows(dispatch(counted).ticket(), rows);
            load.add(rows);
          }
        };
        const auto repeat = [&](auto& by) {
          return [&](std::size_t times) {
            for (std::size_t i = 0; i < times; ++i) static_cast<void>(dispatch(by));
          };
        };
        // Touches all memory before it is timed.
        repeat(dealt)(2);
        repeat(replicated)(2);
        count(2);
        const auto sums = load.rows_of_experts();
        found.payload_right = std::accumulate(sums.begin(), sums.end(), std::uint64_t{0}) ==
                              2 * ranks * mine.ids.size();
        comm.barrier();
        micro::alternate(operations, 1, found, repeat(dealt), repeat(replicated), count);
      });
  const auto [dealt, replicas, counted] = micro::medians_of<3>(result);
  state.counters["dealt_ns"] = dealt;
  state.counters["replicas_ns"] = replicas;
  state.counters["counted_ns"] = counted;
}

[[maybe_unused]] const bool registered = [] {
  benchmark::RegisterBenchmark("replica_choice", replica_choice);
  benchmark::RegisterBenchmark("dispatch_with_replicas", dispatch_with_replicas)
      ->UseManualTime()
      ->Iterations(300);
  return true;
}();

}  // namespace
}  // namespace micro::replicas_bench
