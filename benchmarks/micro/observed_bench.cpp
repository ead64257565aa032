// SPDX-License-Identifier: MIT
//
// What it costs that ranks observe each other: a dispatch and its combine on 2 ranks, by exchanges
// that take turns.
//   observed/<tokens>         on one host
//   observed/hosts/<tokens>   on two pretended hosts, by libfabric over the loopback interface
//     bare_ns      nobody asks; between hosts, of a group whose ranks tell each other nothing
//     looking_ns   before each batch a rank asks who lives, and what all were last seen doing;
//                  between hosts, of a mesh, whose ranks agree on views and tell of long waits
//     heard_ns     the same, and a recorder hears of all operations
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/bootstrap/local.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/trace/recorder.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "micro/batch.hpp"
#include "micro/blocks.hpp"
#include "micro/group.hpp"

#if PEERBUS_BENCH_TCP && PEERBUS_BENCH_FABRIC
#include <peerbus/transport/fabric.hpp>
#include <peerbus/transport/planes.hpp>

#include "micro/two_hosts.hpp"
#endif

namespace micro::observed_bench {
namespace {

using codec = peerbus::codec::int8_per_token;

constexpr std::size_t experts = 256;

/// Measures batches of `tokens` tokens in the group of `bare`, and observed in that of `watched`.
template <class Communicator>
void take_turns(Communicator& bare, Communicator& watched, std::size_t tokens,
                std::size_t operations, micro::found& found) {
  const micro::batch mine{tokens, bare.rank().index(), experts};
  const peerbus::moe::exchange_config config{
      .experts = experts, .hidden = micro::hidden, .top_k = micro::top_k, .max_tokens = tokens};
  auto& listeners = watched.members()->listeners();
  peerbus::recorder events;
  peerbus::moe::exchange unseen{bare, config, codec{}};
  peerbus::moe::exchange looking{watched, config, codec{}};
  listeners.add(events);
  peerbus::moe::exchange heard{watched, config, codec{}};
  listeners.remove(events);
  std::vector<peerbus::bf16> out(mine.tokens.size());
  const auto serve = [&](auto& by) {
    by.combine(by.dispatch(mine.tokens, {mine.ids, mine.weights}), out);
  };
  const auto look = [&] {
    benchmark::DoNotOptimize(watched.members()->health(std::nullopt));
    for (const peerbus::rank_id rank : watched.ranks())
      benchmark::DoNotOptimize(watched.members()->last_seen(rank));
  };
  found.payload_right = micro::all_sum_to(micro::sums_by(unseen, mine), mine, looking, heard);
  bare.barrier();
  micro::alternate(
      operations, 1, found,
      [&](std::size_t times) {
        for (std::size_t i = 0; i < times; ++i) serve(unseen);
      },
      [&](std::size_t times) {
        for (std::size_t i = 0; i < times; ++i) {
          look();
          serve(looking);
        }
      },
      [&](std::size_t times) {
        listeners.add(events);
        for (std::size_t i = 0; i < times; ++i) {
          look();
          serve(heard);
        }
        listeners.remove(events);
      });
}

void count(benchmark::State& state, const micro::found& result) {
  const auto [bare, looking, heard] = micro::medians_of<3>(result);
  state.counters["bare_ns"] = bare;
  state.counters["looking_ns"] = looking;
  state.counters["heard_ns"] = heard;
}

void on_one_host(benchmark::State& state) {
  const auto tokens = static_cast<std::size_t>(state.range(0));
  count(state, micro::run_group<peerbus::unified_bus>(
                   state, 2, [&](auto& comm, std::size_t operations, micro::found& found) {
                     take_turns(comm, comm, tokens, operations, found);
                   }));
}

#if PEERBUS_BENCH_TCP && PEERBUS_BENCH_FABRIC
void between_hosts(benchmark::State& state) {
  using transport = peerbus::planes<peerbus::unified_bus, peerbus::fabric>;
  const auto tokens = static_cast<std::size_t>(state.range(0));
  const auto operations = static_cast<std::size_t>(state.max_iterations);
  const micro::shared_found shared;
  const int status = peerbus::run_local(2, [&](peerbus::bootstrap& boot) {
    const auto alone = micro::meet_as_hosts(boot, false);
    const auto mesh = micro::meet_as_hosts(boot, true);
    peerbus::communicator<transport> bare{transport{*alone}};
    peerbus::communicator<transport> watched{transport{*mesh}};
    micro::found own;
    take_turns(bare, watched, tokens, operations, own);
    shared.add(own, boot.rank().index() == 0);
    watched.barrier();
  });
  const micro::found result = shared.get();
  if (status != 0)
    state.SkipWithError("a rank failed");
  else if (!result.payload_right)
    state.SkipWithError("the payload arrived wrong");
  for (auto _ : state) state.SetIterationTime(result.seconds / static_cast<double>(operations));
  count(state, result);
}
#endif

[[maybe_unused]] const bool registered = [] {
  struct length {
    int tokens, operations, operations_between_hosts;
  };
  for (const length each : {length{1, 20'000, 10'000}, length{128, 400, 400}}) {
    benchmark::RegisterBenchmark("observed", on_one_host)
        ->UseManualTime()
        ->Arg(each.tokens)
        ->Iterations(each.operations);
#if PEERBUS_BENCH_TCP && PEERBUS_BENCH_FABRIC
    benchmark::RegisterBenchmark("observed/hosts", between_hosts)
        ->UseManualTime()
        ->Arg(each.tokens)
        ->Iterations(each.operations_between_hosts);
#endif
  }
  return true;
}();

}  // namespace
}  // namespace micro::observed_bench
