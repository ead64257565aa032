// SPDX-License-Identifier: MIT
//
// As recovery_bench.cpp, for ranks of two pretended hosts that met over TCP as a mesh: near ranks
// share memory, and far ones are reached by libfabric over the loopback interface. Stages on the
// slowest rank: until the first call has failed, until all agree, until the group and all that it
// serves with have been made anew, and until the next dispatch and combine are complete.
//
// And the longest pause of the others while a process comes back.
#include "recovery.hpp"

#if PEERBUS_BENCH_TCP && PEERBUS_BENCH_FABRIC
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/bootstrap/tcp_join_running.hpp>
#include <peerbus/bootstrap/with_vacancies.hpp>
#include <peerbus/communicator/survivors.hpp>
#include <peerbus/transport/fabric.hpp>
#include <peerbus/transport/planes.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "micro/two_hosts.hpp"

namespace micro::recovery::two_hosts {
namespace {

using micro::meet_as_hosts;
using micro::patience;
using std::chrono::microseconds;
using server = recovery::server<peerbus::planes<peerbus::unified_bus, peerbus::fabric>>;

/// One rank's part; `victim` is killed after `delay`.
void serve(peerbus::bootstrap& boot, std::size_t victim, microseconds delay, report& told) {
  const std::size_t me = boot.rank().index();
  auto mine = std::make_unique<server>(meet_as_hosts(boot));
  std::thread killer;
  auto& reached = told.reached[me];
  for (bool is_whole = true;;) {
    try {
      if (!is_whole) {
        mine->comm.continue_without_the_dead();
        reached[1] = now();
        auto next = peerbus::survivors(mine->comm, [](std::unique_ptr<peerbus::bootstrap> met) {
          return std::make_unique<server>(std::move(met));
        });
        mine.swap(next);
        reached[2] = now();
        mine->serve_batch();
        reached[3] = now();
        mine->comm.barrier();
        return;
      }
      mine->serve_batch();
      if (me == victim && !killer.joinable()) killer = die_after(delay, told);
    } catch (const peerbus::error& problem) {
      if (problem.code() != peerbus::errc::peer_dead) throw;
      is_whole = false;
      if (reached[0] == 0) reached[0] = now();
    }
  }
}

/// One rank's part; `newcomer` calls after `delay`, and the others take it in.
void take_in(peerbus::bootstrap& boot, std::size_t newcomer, microseconds delay, report& told) {
  using member = recovery::member<peerbus::planes<peerbus::unified_bus, peerbus::fabric>>;
  const std::size_t me = boot.rank().index();
  peerbus::tcp_settings place;
  place.rank = me;
  place.size = boot.size();
  place.address = "127.0.0.1";
  place.secret = "only for this benchmark";
  place.host = "host " + std::to_string(me % 2);
  // Another one each round, below those that the system gives to callers.
  place.port = static_cast<std::uint16_t>(
      20'000 + (static_cast<std::uint64_t>(::getppid()) * 97 + told.round) % 12'000);
  const auto make = [&](std::unique_ptr<peerbus::bootstrap> met) {
    return std::make_unique<member>(std::move(met), place);
  };
  if (me == newcomer) {
    peerbus::fabric::prepare();
    std::this_thread::sleep_for(delay);
    const auto mine = peerbus::join_running(place, make);
    mine->serve_batch();
    mine->comm.barrier();
  } else {
    const auto members = all_but(newcomer, boot);
    auto seat = place;
    seat.mesh = true;
    seat.size = members.size();
    if (me > newcomer) --seat.rank;
    serve_until_whole(
        make(peerbus::with_vacancies(std::make_unique<peerbus::tcp_bootstrap>(seat, patience()),
                                     members, boot.size())),
        make, told.reached[me]);
  }
}

void measure(benchmark::State& state, std::size_t ranks) {
  static constexpr std::array names{"noticed_ms", "agreed_ms", "remade_ms", "served_ms"};
  measure_deaths(state, ranks, serve, names);
}

void measure_return(benchmark::State& state, std::size_t ranks) {
  measure_returns(state, ranks, take_in);
}

[[maybe_unused]] const bool registered = [] {
  for (const std::size_t ranks : {3U, 4U, 8U})
    benchmark::RegisterBenchmark(("recovery/hosts:2/ranks:" + std::to_string(ranks)).c_str(),
                                 measure, ranks)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  for (const std::size_t ranks : {3U, 8U})
    benchmark::RegisterBenchmark(("recovery/return/hosts:2/ranks:" + std::to_string(ranks)).c_str(),
                                 measure_return, ranks)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  return true;
}();

}  // namespace
}  // namespace micro::recovery::two_hosts
#endif
