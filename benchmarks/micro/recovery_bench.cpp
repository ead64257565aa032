// SPDX-License-Identifier: MIT
//
// The time from the death of a rank by SIGKILL until the others have completed their next dispatch
// and combine, the last of them. The rank is killed at a moment of its own in each round, while all
// serve batches; sums are checked before and after. Stages on the slowest rank: until the first
// call has failed, until all agree, until the exchange has resumed.
//
// The time until the last rank has noticed, while all others wait for the victim, while all serve,
// and while as many other processes as there are cores compute beside them.
//
// And the longest pause of the others while a process comes back: from the call that takes it in
// until the next dispatch and combine, with it, are complete.
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/bootstrap/join_running.hpp>
#include <peerbus/bootstrap/split.hpp>
#include <peerbus/bootstrap/with_vacancies.hpp>
#include <peerbus/peerbus.hpp>

#include "recovery.hpp"

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
void take_in(peerbus::bootstrap& boot, std::size_t newcomer, microseconds delay, report& told) {
  using member = recovery::member<peerbus::unified_bus>;
  const std::size_t me = boot.rank().index();
  peerbus::launch_settings place;
  place.job = "recovery_bench/" + std::to_string(::getppid()) + "/" + std::to_string(told.round);
  place.rank = me;
  place.size = boot.size();
  const auto make = [&](std::unique_ptr<peerbus::bootstrap> met) {
    return std::make_unique<member>(std::move(met), place);
  };
  auto met = peerbus::split(boot, me == newcomer ? 1 : 0);
  if (me == newcomer) {
    std::this_thread::sleep_for(delay);
    const auto mine = peerbus::join_running(place, make);
    mine->serve_batch();
    mine->comm.barrier();
  } else {
    serve_until_whole(
        make(peerbus::with_vacancies(std::move(met), all_but(newcomer, boot), boot.size())), make,
        told.reached[me]);
  }
}

/// What the ranks do, and others on the machine, when one dies.
enum class doing : std::uint8_t { wait, serve, serve_beside_others };

/// One rank's part: it waits for the victim all the time, or serves.
void notice(doing what, peerbus::bootstrap& boot, std::size_t victim, microseconds delay,
            report& told) {
  server mine{boot};
  const std::size_t me = mine.comm.rank().index();
  mine.serve_batch();
  mine.comm.barrier();
  std::thread killer;
  if (me == victim) killer = die_after(delay, told);
  if (me == victim && what == doing::wait) killer.join();
  try {
    for (;;) {
      if (what != doing::wait) mine.serve_batch();
      mine.comm.barrier();
    }
  } catch (const peerbus::error& problem) {
    if (problem.code() != peerbus::errc::peer_dead) throw;
    told.reached[me][0] = now();
  }
}

/// Processes that compute all the time.
class computing_others {
 public:
  explicit computing_others(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (std::atomic<std::uint64_t> steps{0};;) ++steps;
      }
      if (child > 0) children_.push_back(child);
    }
  }
  computing_others(const computing_others&) = delete;
  computing_others& operator=(const computing_others&) = delete;
  ~computing_others() {
    for (const pid_t child : children_) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }

 private:
  std::vector<pid_t> children_;
};

void measure(benchmark::State& state, std::size_t ranks) {
  static constexpr std::array names{"noticed_ms", "agreed_ms", "resumed_ms", "served_ms"};
  measure_deaths(state, ranks, serve, names);
}

void measure_notice(benchmark::State& state, std::size_t ranks, doing what) {
  static constexpr std::array names{"noticed_ms"};
  const computing_others others{
      what == doing::serve_beside_others ? std::thread::hardware_concurrency() : 0};
  measure_deaths(
      state, ranks,
      [&](peerbus::bootstrap& boot, std::size_t victim, microseconds delay, report& told) {
        notice(what, boot, victim, delay, told);
      },
      names);
}

void measure_return(benchmark::State& state, std::size_t ranks) {
  measure_returns(state, ranks, take_in);
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
  for (const auto& [name, what] :
       {std::pair{"waiting", doing::wait}, std::pair{"serving", doing::serve},
        std::pair{"beside_others", doing::serve_beside_others}})
    benchmark::RegisterBenchmark((std::string{"recovery/notice/"} + name + "/ranks:8").c_str(),
                                 measure_notice, 8U, what)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  return true;
}();

}  // namespace
}  // namespace micro::recovery::one_host
