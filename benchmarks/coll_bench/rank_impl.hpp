// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/collective/measure_costs.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/trace/job_trace.hpp>

#include "coll_bench/measurement.hpp"
#include "coll_bench/mpi_calls.hpp"
#include "coll_bench/options.hpp"
#include "coll_bench/rank.hpp"
#include "coll_bench/report.hpp"
#include "support/cost_file.hpp"
#include "support/machine.hpp"
#include "support/noise.hpp"

namespace coll_bench {

/// Prints the measured costs and writes them to the file.
inline void save_costs(const options& chosen) {
  std::printf("%s", chosen.team.costs.text().c_str());
  bench::merge_costs(chosen.costs_to, chosen.team.costs);
}

template <class Transport>
int run_over(peerbus::bootstrap& boot, options chosen, Transport bus) {
  if (chosen.root >= boot.size()) {
    if (boot.rank().index() == 0)
      std::fprintf(stderr, "--root: %zu given, expected a rank below %zu\n", chosen.root,
                   boot.size());
    return bad_command_line;
  }
  const auto mpi = chosen.with_mpi ? start_mpi(chosen.type, chosen.reduction) : nullptr;
  const std::size_t cores = boot.cores_here();
  peerbus::communicator<Transport> comm{std::move(bus)};
  if (!chosen.costs_to.empty()) {
    chosen.team.costs = peerbus::collective::measure_costs(
        comm, std::move(chosen.team.costs),
        {.turns = chosen.turns, .calls = chosen.iterations, .team = chosen.team});
    if (comm.rank().index() == 0) save_costs(chosen);
  }
  std::optional<peerbus::job_trace> trace;
  if (!chosen.trace.empty()) trace.emplace(boot, comm.default_deadline());
  measurement<Transport> run{comm, chosen, mpi.get(), boot.shares_cores()};
  auto result = run.run();
  if (trace) trace->write(chosen.trace, comm.default_deadline());
  if (comm.rank().index() != 0) return 0;
  result.cores = cores;
  if (mpi) result.library = mpi->library();
  result.noise = noise_of(chosen, result);
  show(chosen, bench::machine::here(), result);
  if (bench::refuses_noise("coll_bench", chosen.noise, result.noise)) return 1;
  return result.wrong() == 0 ? 0 : 1;
}

}  // namespace coll_bench
