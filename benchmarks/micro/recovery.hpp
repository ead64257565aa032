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
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/communicator/admission.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
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
  std::uint64_t round = 0;  ///< set before they start
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

/// The time of a stage on the slowest of the ranks that report it, in ms since `begin`.
inline double slowest(const report& told, std::size_t stage, std::int64_t begin) {
  std::int64_t last = begin;
  for (const auto& of_rank : told.reached) last = std::max(last, of_rank[stage].load());
  return bench::nanoseconds(bench::clock::duration{last - begin}) / 1e6;
}

/// Kills this process after `delay`.
inline std::thread die_after(std::chrono::microseconds delay, report& told) {
  return std::thread{[delay, &told] {
    std::this_thread::sleep_for(delay);
    told.killed_at = now();
    ::raise(SIGKILL);
  }};
}

/// Calls `serve(boot, victim, delay, told)` on `ranks` processes in each round, the worst exit
/// status of which is `status`. The stages begin at `begin(told)` and have the names of `names`.
/// The last one is the time of the round. Of the first one, the 99th percentile is counted too.
template <class Serve, class Begin>
void measure_rounds(benchmark::State& state, std::size_t ranks, Serve serve, int status,
                    Begin begin, std::span<const char* const> names) {
  std::vector<std::vector<double>> times(names.size());
  std::uint64_t round = 0;
  for (auto _ : state) {
    try {
      const shared_report told;
      told.at->round = ++round;
      // A hash spreads the moments over 20 ms, and the victims over all ranks, the first included.
      const std::uint64_t drawn = (round * 0x9e37'79b9'7f4a'7c15U) >> 32U;
      const std::size_t victim = drawn % ranks;
      const int worst_status = peerbus::run_local(ranks, [&](peerbus::bootstrap& boot) {
        serve(boot, victim, std::chrono::microseconds{drawn / ranks % 20'000}, *told.at);
      });
      if (worst_status != status) throw std::runtime_error{"a rank ended with another status"};
      for (std::size_t stage = 0; stage < names.size(); ++stage)
        times[stage].push_back(slowest(*told.at, stage, begin(*told.at)));
      state.SetIterationTime(times.back().back() / 1e3);
    } catch (const std::exception& problem) {
      return state.SkipWithError(problem.what());
    }
  }
  for (std::size_t stage = 0; stage < names.size(); ++stage)
    state.counters[names[stage]] = bench::median(times[stage]);
  state.counters["first_p99_ms"] = bench::summarise(times.front()).p99;
  state.counters["p99_ms"] = bench::summarise(times.back()).p99;
  state.counters["worst_ms"] = std::ranges::max(times.back());
}

/// Rounds in which the victim dies.
template <class Serve>
void measure_deaths(benchmark::State& state, std::size_t ranks, Serve serve,
                    std::span<const char* const> names) {
  measure_rounds(
      state, ranks, serve, 128 + SIGKILL, [](const report& told) { return told.killed_at.load(); },
      names);
}

/// Rounds in which a process that was not there at first comes back.
template <class Serve>
void measure_returns(benchmark::State& state, std::size_t ranks, Serve serve) {
  static constexpr std::array names{"met_ms", "made_ms", "admitted_ms", "served_ms"};
  measure_rounds(state, ranks, serve, 0, [](const report&) { return std::int64_t{0}; }, names);
}

/// What a rank serves with that takes in others.
template <class Transport>
struct member : server<Transport> {
  peerbus::admission door;

  template <class Place>
  member(std::unique_ptr<peerbus::bootstrap> boot, const Place& place)
      : server<Transport>{std::move(boot)}, door{this->comm, place} {}
};

/// Serves, by what `make(boot)` makes, until a process has been taken in. Reports the pause: from
/// the call that takes it in until all have met, until this rank has made what it needs, until all
/// have, and until the next batch is complete.
template <class Member, class Make>
void serve_until_whole(std::unique_ptr<Member> mine, Make make,
                       std::array<std::atomic<std::int64_t>, stages>& reached) {
  for (bool is_whole = false; !is_whole;) {
    mine->serve_batch();
    const auto called = bench::clock::now();
    const auto reach = [&](std::size_t stage) {
      reached[stage] = (bench::clock::now() - called).count();
    };
    if (auto larger = mine->door.admit([&](std::unique_ptr<peerbus::bootstrap> boot) {
          reach(0);
          auto made = make(std::move(boot));
          reach(1);
          return made;
        })) {
      reach(2);
      mine = std::move(*larger);
      mine->serve_batch();
      reach(3);
      is_whole = true;
    }
  }
  mine->comm.barrier();
}

/// The ranks of `boot` but one.
inline std::vector<peerbus::rank_id> all_but(std::size_t newcomer, const peerbus::bootstrap& boot) {
  std::vector<peerbus::rank_id> members;
  for (const peerbus::rank_id rank : peerbus::all_ranks{boot.size()})
    if (rank.index() != newcomer) members.push_back(rank);
  return members;
}

}  // namespace micro::recovery
