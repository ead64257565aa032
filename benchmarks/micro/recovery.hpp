// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/exchange.hpp>

#include "support/clock.hpp"
#include "support/statistics.hpp"

/// Ranks that serve batches until one of them dies.
namespace micro::recovery {

using peerbus::bf16;

inline constexpr std::size_t hidden = 7168, top_k = 8, experts_per_rank = 32, tokens_per_rank = 8;
inline constexpr std::size_t stages = 4;
inline constexpr std::size_t most_ranks = 64;

/// What the processes tell this one.
struct report {
  std::atomic<std::int64_t> killed_at{0};
  /// Of each rank: when it had noticed, agreed, resumed, and completed the next combine.
  std::array<std::array<std::atomic<std::int64_t>, stages>, most_ranks> reached{};
};

inline std::int64_t now() { return bench::clock::now().time_since_epoch().count(); }

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

/// What a rank serves with.
template <class Transport>
class server {
 public:
  explicit server(peerbus::bootstrap& boot) : comm{Transport{boot}} {
    for (std::size_t i = 0; i < ids_.size(); ++i)
      ids_[i] = static_cast<std::int32_t>((comm.rank().index() * 13 + i * 37) % experts());
  }
  explicit server(std::unique_ptr<peerbus::bootstrap> boot) : server{*boot} {
    own_ = std::move(boot);
  }

  void serve_batch() {
    const auto received = moe.dispatch(tokens_, {ids_, weights_});
    for (const auto& expert : received.experts())
      for (std::size_t row = 0; row < expert.count(); ++row)
        std::ranges::fill(expert.output(row), bf16{static_cast<float>(top_k)});
    moe.combine(received, out_);
    for (std::size_t t = 0; t < tokens_per_rank; ++t) {
      float wanted = 0;
      for (std::size_t k = 0; k < top_k; ++k)
        wanted += comm.view().contains(
                      moe.placement().owner(static_cast<std::size_t>(ids_[t * top_k + k])))
                      ? 1.0F
                      : 0.0F;
      if (static_cast<float>(out_[t * hidden]) != wanted) throw std::runtime_error{"a wrong sum"};
    }
  }

 private:
  [[nodiscard]] std::size_t experts() const { return experts_per_rank * comm.size(); }

  std::unique_ptr<peerbus::bootstrap> own_;

 public:
  peerbus::communicator<Transport> comm;
  peerbus::moe::exchange<Transport, peerbus::codec::int8_per_token> moe{
      comm,
      {.experts = experts(), .hidden = hidden, .top_k = top_k, .max_tokens = tokens_per_rank},
      peerbus::codec::int8_per_token{}};

 private:
  std::vector<bf16> tokens_ = std::vector<bf16>(tokens_per_rank * hidden, bf16{1.0F});
  std::vector<std::int32_t> ids_ = std::vector<std::int32_t>(tokens_per_rank * top_k);
  std::vector<float> weights_ = std::vector<float>(tokens_per_rank * top_k, 1.0F / top_k);
  std::vector<bf16> out_ = std::vector<bf16>(tokens_per_rank * hidden);
};

/// The times of all stages on the slowest of the ranks that live, in ms since the death.
inline std::array<double, stages> slowest(const report& told, std::size_t ranks,
                                          std::size_t victim) {
  std::array<double, stages> times{};
  for (std::size_t stage = 0; stage < stages; ++stage) {
    std::int64_t last = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      if (rank != victim) last = std::max(last, told.reached[rank][stage].load());
    times[stage] = bench::nanoseconds(bench::clock::duration{last - told.killed_at.load()}) / 1e6;
  }
  return times;
}

/// Kills this process after `delay`.
inline std::thread die_after(std::chrono::microseconds delay, report& told) {
  return std::thread{[delay, &told] {
    std::this_thread::sleep_for(delay);
    told.killed_at = now();
    ::raise(SIGKILL);
  }};
}

/// Calls `serve(boot, victim, delay, told)` on `ranks` processes in each round, of which the victim
/// dies. The third stage has the name `third`.
template <class Serve>
void measure_deaths(benchmark::State& state, std::size_t ranks, Serve serve, const char* third) {
  std::array<std::vector<double>, stages> times;
  std::uint64_t round = 0;
  for (auto _ : state) {
    try {
      const shared_report told;
      // A hash spreads the moments over 20 ms, and the victims over all ranks, the first included.
      const std::uint64_t drawn = (++round * 0x9e37'79b9'7f4a'7c15U) >> 32U;
      const std::size_t victim = drawn % ranks;
      const int status = peerbus::run_local(ranks, [&](peerbus::bootstrap& boot) {
        serve(boot, victim, std::chrono::microseconds{drawn / ranks % 20'000}, *told.at);
      });
      if (status != 128 + SIGKILL)
        throw std::runtime_error{"expected the victim to be killed alone"};
      const auto reached = slowest(*told.at, ranks, victim);
      for (std::size_t stage = 0; stage < stages; ++stage) times[stage].push_back(reached[stage]);
      state.SetIterationTime(reached[stages - 1] / 1e3);
    } catch (const std::exception& problem) {
      return state.SkipWithError(problem.what());
    }
  }
  const std::array names{"noticed_ms", "agreed_ms", third, "served_ms"};
  for (std::size_t stage = 0; stage < stages; ++stage)
    state.counters[names[stage]] = bench::median(times[stage]);
  state.counters["noticed_p99_ms"] = bench::summarise(times[0]).p99;
  state.counters["worst_ms"] = std::ranges::max(times[stages - 1]);
}

}  // namespace micro::recovery
