// SPDX-License-Identifier: MIT
//
// What it costs to distrust peers (`exchange_config::distrust_peers`): a dispatch and its combine
// on 2 ranks, by two exchanges that take turns.
//   distrust/<tokens>
//     trusting_ns      peers' numbers are believed
//     distrusting_ns   they are copied and checked
#include <cstddef>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "micro/batch.hpp"
#include "micro/blocks.hpp"
#include "micro/group.hpp"

namespace micro::distrust_bench {
namespace {

using codec = peerbus::codec::int8_per_token;

void dispatch_and_combine(benchmark::State& state) {
  const auto tokens = static_cast<std::size_t>(state.range(0));
  const auto result = micro::run_group<peerbus::unified_bus>(
      state, 2, [&](auto& comm, std::size_t operations, micro::found& found) {
        constexpr std::size_t experts = 256;
        const micro::batch mine{tokens, comm.rank().index(), experts};
        std::vector<peerbus::bf16> out(mine.tokens.size());
        peerbus::moe::exchange_config config{.experts = experts,
                                             .hidden = micro::hidden,
                                             .top_k = micro::top_k,
                                             .max_tokens = tokens};
        peerbus::moe::exchange trusting{comm, config, codec{}};
        config.distrust_peers = true;
        peerbus::moe::exchange distrusting{comm, config, codec{}};
        const auto repeat = [&](auto& by) {
          return [&](std::size_t times) {
            for (std::size_t i = 0; i < times; ++i)
              by.combine(by.dispatch(mine.tokens, {mine.ids, mine.weights}), out);
          };
        };
        found.payload_right = micro::all_sum_to(micro::sums_by(trusting, mine), mine, distrusting);
        comm.barrier();
        micro::alternate(operations, 1, found, repeat(trusting), repeat(distrusting));
      });
  const auto [trusting, distrusting] = micro::medians_of<2>(result);
  state.counters["trusting_ns"] = trusting;
  state.counters["distrusting_ns"] = distrusting;
}

[[maybe_unused]] const bool registered = [] {
  benchmark::RegisterBenchmark("distrust", dispatch_and_combine)
      ->UseManualTime()
      ->Arg(1)
      ->Iterations(20'000);
  benchmark::RegisterBenchmark("distrust", dispatch_and_combine)
      ->UseManualTime()
      ->Arg(128)
      ->Iterations(400);
  return true;
}();

}  // namespace
}  // namespace micro::distrust_bench
