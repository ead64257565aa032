// SPDX-License-Identifier: MIT
//
// What an operation pays in each of its waits so that others see what its rank is doing.
#include <cstdint>
#include <memory>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace micro::activity_bench {
namespace {

void record_wait(benchmark::State& state) {
  const auto word = std::make_shared<peerbus::membership::state_word>();
  const peerbus::membership alone{peerbus::rank_id{0}, 1, word.get(), word,
                                  std::vector<peerbus::unique_fd>(1)};
  std::uint64_t number = 0;
  for (auto _ : state) {
    auto& seen = alone.own_activity();
    const auto wait = seen.begin({.operation = peerbus::group_operation::dispatch,
                                  .phase = peerbus::operation_phase::rows,
                                  .number = ++number});
    benchmark::ClobberMemory();
    seen.end(wait);
  }
}

BENCHMARK(record_wait)->Name("activity/wait");

}  // namespace
}  // namespace micro::activity_bench
