// SPDX-License-Identifier: MIT
//
// Barriers one after the other. With more ranks than cores, most of the time is the kernel's, which
// changes from one rank to the next.
#include <cstddef>
#include <string>

#include <benchmark/benchmark.h>

#include <peerbus/communicator.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "micro/group.hpp"
#include "support/clock.hpp"

namespace micro::barrier_bench {
namespace {

template <class Transport>
void barrier(benchmark::State& state, std::size_t ranks) {
  micro::run_group<Transport>(
      state, ranks,
      [&](peerbus::communicator<Transport>& comm, std::size_t operations, micro::found& found) {
        comm.barrier();
        const auto start = bench::clock::now();
        for (std::size_t i = 0; i < operations; ++i) comm.barrier();
        const auto span = bench::clock::now() - start;
        found.seconds = bench::nanoseconds(span) / 1e9;
      });
}

template <class Transport>
void add(const std::string& transport) {
  for (const std::size_t ranks : {1U, 2U, 3U, 4U, 8U, 16U})
    benchmark::RegisterBenchmark(
        ("barrier/" + transport + "/ranks:" + std::to_string(ranks)).c_str(), barrier<Transport>,
        ranks)
        ->UseManualTime();
}

[[maybe_unused]] const bool registered = [] {
  add<peerbus::unified_bus>("unified_bus");
  add<peerbus::loopback>("loopback");
  return true;
}();

}  // namespace
}  // namespace micro::barrier_bench
