// SPDX-License-Identifier: MIT
//
// The time from the death of a rank by SIGKILL until the others have completed their next dispatch
// and combine, the last of them. The rank is killed at a moment of its own in each round, while all
// serve batches; sums are checked before and after. Stages on the slowest rank: until the first
// call has failed, until all agree, until the exchange has resumed.
//
// And the longest pause of the others while a process comes back: from the call that takes it in
// until the next dispatch and combine, with it, are complete.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/bootstrap/join_running.hpp>
#include <peerbus/bootstrap/split.hpp>
#include <peerbus/bootstrap/with_vacancies.hpp>
#include <peerbus/communicator/admission.hpp>
#include <peerbus/peerbus.hpp>

#include "recovery.hpp"
#include "support/clock.hpp"
#include "support/statistics.hpp"

namespace micro::recovery::one_host {
namespace {

using std::chrono::microseconds;
using server = recovery::server<peerbus::unified_bus>;

/// One rank's part; `victim` is killed after `delay`.
void serve(peerbus::bootstrap& boot, std::size_t victim, microseconds delay, report& told) {
  server mine{boot};
  peerbus::communicator<peerbus::unified_bus>& comm = mine.comm;
  const std::size_t me = comm.rank().index();
  mine.serve_batch();
  comm.barrier();
  std::thread killer;
  if (me == victim) killer = die_after(delay, told);
  auto& reached = told.reached[me];
  for (bool is_whole = true;;) {
    try {
      if (!is_whole) {
        comm.continue_without_the_dead();
        reached[1] = now();
        static_cast<void>(mine.moe.resume());
        reached[2] = now();
      }
      mine.serve_batch();
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

/// One rank's part; `newcomer` calls after `delay`, and the others take it in.
void take_in(peerbus::bootstrap& boot, std::size_t newcomer, microseconds delay,
             const std::string& job, report& told) {
  const std::size_t me = boot.rank().index();
  peerbus::launch_settings place;
  place.rank = me;
  place.size = boot.size();
  place.job = job;
  const auto make = [](std::unique_ptr<peerbus::bootstrap> met) {
    return std::make_unique<server>(std::move(met));
  };
  auto met = peerbus::split(boot, me == newcomer ? 1 : 0);
  if (me == newcomer) {
    std::this_thread::sleep_for(delay);
    const auto mine = peerbus::join_running(place, make);
    mine->serve_batch();
    mine->comm.barrier();
  } else {
    std::vector<peerbus::rank_id> members;
    for (const peerbus::rank_id rank : peerbus::all_ranks{boot.size()})
      if (rank.index() != newcomer) members.push_back(rank);
    const auto mine = make(peerbus::with_vacancies(std::move(met), members, boot.size()));
    peerbus::admission door{mine->comm, place};
    std::unique_ptr<server> whole;
    while (!whole) {
      mine->serve_batch();
      const auto called = bench::clock::now();
      if (auto larger = door.admit(make)) {
        told.reached[me][0] = (bench::clock::now() - called).count();
        whole = std::move(*larger);
        whole->serve_batch();
        told.reached[me][1] = (bench::clock::now() - called).count();
      }
    }
    whole->comm.barrier();
  }
}

void measure(benchmark::State& state, std::size_t ranks) {
  measure_deaths(state, ranks, serve, "resumed_ms");
}

void measure_return(benchmark::State& state, std::size_t ranks) {
  std::array<std::vector<double>, 2> times;
  std::uint64_t round = 0;
  for (auto _ : state) {
    try {
      const shared_report told;
      const std::uint64_t drawn = (++round * 0x9e37'79b9'7f4a'7c15U) >> 32U;
      const std::string job =
          "recovery_bench/" + std::to_string(::getpid()) + "/" + std::to_string(round);
      const int status = peerbus::run_local(ranks, [&](peerbus::bootstrap& boot) {
        take_in(boot, drawn % ranks, microseconds{drawn / ranks % 20'000}, job, *told.at);
      });
      if (status != 0) throw std::runtime_error{"expected all ranks to serve"};
      for (std::size_t stage = 0; stage < times.size(); ++stage) {
        std::int64_t longest = 0;
        for (std::size_t rank = 0; rank < ranks; ++rank)
          longest = std::max(longest, told.at->reached[rank][stage].load());
        times[stage].push_back(bench::nanoseconds(bench::clock::duration{longest}) / 1e6);
      }
      state.SetIterationTime(times[1].back() / 1e3);
    } catch (const std::exception& problem) {
      return state.SkipWithError(problem.what());
    }
  }
  state.counters["admitted_ms"] = bench::median(times[0]);
  state.counters["served_ms"] = bench::median(times[1]);
  state.counters["worst_ms"] = *std::max_element(times[1].begin(), times[1].end());
}

[[maybe_unused]] const bool registered = [] {
  for (const std::size_t ranks : {2U, 8U, 64U})
    benchmark::RegisterBenchmark(("recovery/ranks:" + std::to_string(ranks)).c_str(), measure,
                                 ranks)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  for (const std::size_t ranks : {2U, 8U})
    benchmark::RegisterBenchmark(("recovery/return/ranks:" + std::to_string(ranks)).c_str(),
                                 measure_return, ranks)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  return true;
}();

}  // namespace
}  // namespace micro::recovery::one_host
