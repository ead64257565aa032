// SPDX-License-Identifier: MIT
//
// The time from the death of a rank by SIGKILL until the others have completed their next dispatch
// and combine, the last of them. The rank is killed at a moment of its own in each round, while all
// serve batches; sums are checked before and after. Stages on the slowest rank: until the first
// call has failed, until all agree, until the exchange has resumed.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/peerbus.hpp>

#include "support/clock.hpp"
#include "support/statistics.hpp"

namespace micro::recovery_bench {
namespace {

using peerbus::bf16;
using std::chrono::microseconds;

constexpr std::size_t hidden = 7168, top_k = 8, experts_per_rank = 32, tokens_per_rank = 8;
constexpr std::size_t stages = 4;
constexpr std::size_t most_ranks = 64;

/// What the processes tell this one.
struct report {
  std::atomic<std::int64_t> killed_at{0};
  /// Of each rank: when it had noticed, agreed, resumed, and completed the next combine.
  std::array<std::array<std::atomic<std::int64_t>, stages>, most_ranks> reached{};
};

std::int64_t now() { return bench::clock::now().time_since_epoch().count(); }

/// Memory that processes share from before they are forked.
struct shared_report {
  report* at;

  shared_report() {
    void* const page =
        ::mmap(nullptr, sizeof(report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw std::runtime_error{"no memory could be shared"};
    at = ::new (page) report;
  }
  shared_report(const shared_report&) = delete;
  shared_report& operator=(const shared_report&) = delete;
  ~shared_report() { ::munmap(at, sizeof(report)); }
};

/// One rank's part; `victim` is killed after `delay`.
void serve(peerbus::bootstrap& boot, std::size_t victim, microseconds delay, report& told) {
  peerbus::communicator comm{peerbus::unified_bus{boot}};
  const std::size_t experts = experts_per_rank * comm.size();
  peerbus::moe::exchange moe{
      comm,
      {.experts = experts, .hidden = hidden, .top_k = top_k, .max_tokens = tokens_per_rank},
      peerbus::codec::int8_per_token{}};
  const std::size_t me = comm.rank().index();
  const std::vector<bf16> tokens(tokens_per_rank * hidden, bf16{1.0F});
  std::vector<std::int32_t> ids(tokens_per_rank * top_k);
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>((me * 13 + i * 37) % experts);
  const std::vector<float> weights(ids.size(), 1.0F / top_k);
  std::vector<bf16> out(tokens.size());
  const auto serve_batch = [&] {
    const auto received = moe.dispatch(tokens, {ids, weights});
    for (const auto& expert : received.experts())
      for (std::size_t row = 0; row < expert.count(); ++row)
        std::ranges::fill(expert.output(row), bf16{static_cast<float>(top_k)});
    moe.combine(received, out);
    for (std::size_t t = 0; t < tokens_per_rank; ++t) {
      float wanted = 0;
      for (std::size_t k = 0; k < top_k; ++k)
        wanted += comm.view().contains(
                      moe.placement().owner(static_cast<std::size_t>(ids[t * top_k + k])))
                      ? 1.0F
                      : 0.0F;
      if (static_cast<float>(out[t * hidden]) != wanted) throw std::runtime_error{"a wrong sum"};
    }
  };
  serve_batch();
  comm.barrier();
  std::thread killer;
  if (me == victim)
    killer = std::thread{[&] {
      std::this_thread::sleep_for(delay);
      told.killed_at = now();
      ::raise(SIGKILL);
    }};
  auto& reached = told.reached[me];
  for (bool is_whole = true;;) {
    try {
      if (!is_whole) {
        comm.continue_without_the_dead();
        reached[1] = now();
        static_cast<void>(moe.resume());
        reached[2] = now();
      }
      serve_batch();
      if (!is_whole) break;
    } catch (const peerbus::error& problem) {
      if (problem.code() != peerbus::errc::peer_dead) throw;
      is_whole = false;
      reached[0] = now();
    }
  }
  reached[3] = now();
  comm.barrier();
}

void measure(benchmark::State& state, std::size_t ranks) {
  std::array<std::vector<double>, stages> times;
  std::uint64_t round = 0;
  for (auto _ : state) {
    try {
      const shared_report told;
      // A hash spreads the moments over 20 ms, and the victims over all ranks, the first included.
      const std::uint64_t drawn = (++round * 0x9e37'79b9'7f4a'7c15U) >> 32U;
      const std::size_t victim = drawn % ranks;
      const int status = peerbus::run_local(ranks, [&](peerbus::bootstrap& boot) {
        serve(boot, victim, microseconds{drawn / ranks % 20'000}, *told.at);
      });
      if (status != 128 + SIGKILL)
        throw std::runtime_error{"expected the victim to be killed alone"};
      for (std::size_t stage = 0; stage < stages; ++stage) {
        std::int64_t last = 0;
        for (std::size_t rank = 0; rank < ranks; ++rank)
          if (rank != victim) last = std::max(last, told.at->reached[rank][stage].load());
        times[stage].push_back(
            bench::nanoseconds(bench::clock::duration{last - told.at->killed_at.load()}) / 1e6);
      }
      state.SetIterationTime(times[stages - 1].back() / 1e3);
    } catch (const std::exception& problem) {
      return state.SkipWithError(problem.what());
    }
  }
  constexpr std::array names{"noticed_ms", "agreed_ms", "resumed_ms", "served_ms"};
  for (std::size_t stage = 0; stage < stages; ++stage)
    state.counters[names[stage]] = bench::median(times[stage]);
  auto& whole = times[stages - 1];
  std::sort(whole.begin(), whole.end());
  state.counters["worst_ms"] = whole.back();
}

[[maybe_unused]] const bool registered = [] {
  for (const std::size_t ranks : {2U, 8U, 64U})
    benchmark::RegisterBenchmark(("recovery/ranks:" + std::to_string(ranks)).c_str(), measure,
                                 ranks)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  return true;
}();

}  // namespace
}  // namespace micro::recovery_bench
