// SPDX-License-Identifier: MIT
//
// Collective operations between ranks of this host, with the columns and options of nccl-tests,
// beside plain copies and, if started by mpirun, beside MPI. `coll_bench --help` lists the options.
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/collective/measure_costs.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "coll_bench/measurement.hpp"
#include "coll_bench/mpi_calls.hpp"
#include "coll_bench/options.hpp"
#include "coll_bench/report.hpp"
#include "support/cost_file.hpp"
#include "support/join_group.hpp"
#include "support/pin.hpp"

namespace {

using coll_bench::options;

constexpr int bad_command_line = 2;

/// Prints the measured costs and writes them to the file.
void save_costs(const options& chosen) {
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
  const auto mpi = chosen.with_mpi ? coll_bench::start_mpi(chosen.type, chosen.reduction) : nullptr;
  const std::size_t cores = boot.cores_here();
  peerbus::communicator<Transport> comm{std::move(bus)};
  if (!chosen.costs_to.empty()) {
    chosen.team.costs = peerbus::collective::measure_costs(
        comm, std::move(chosen.team.costs),
        {.turns = chosen.turns, .calls = chosen.iterations, .team = chosen.team});
    if (comm.rank().index() == 0) save_costs(chosen);
  }
  coll_bench::measurement<Transport> run{comm, chosen, mpi.get(), boot.shares_cores()};
  auto result = run.run();
  if (comm.rank().index() != 0) return 0;
  result.cores = cores;
  if (mpi) result.library = mpi->library();
  const auto where = bench::machine::here();
  print(chosen, where, result);
  if (!chosen.json.empty())
    bench::write_json(chosen.json, coll_bench::result_json(chosen, where, result));
  return result.wrong() == 0 ? 0 : 1;
}

int run_process(peerbus::bootstrap& boot, const options& chosen) {
  peerbus::unified_bus bus{boot};
  if (chosen.transport == "puts")
    return run_over(boot, chosen, peerbus::any_transport{std::move(bus)});
  return run_over(boot, chosen, std::move(bus));
}

int run_launched(const options& chosen) {
  const auto boot = bench::join_group("host");
  if (chosen.ranks_given && chosen.ranks != boot->size()) {
    std::fprintf(stderr, "--ranks: %zu given, expected as many as the launcher has started, %zu\n",
                 chosen.ranks, boot->size());
    return bad_command_line;
  }
  return run_process(*boot, chosen);
}

int start(const options& chosen) {
  const bool pin = chosen.ranks <= peerbus::usable_cores();
  if (chosen.transport == "loopback")
    return peerbus::run_threads(chosen.ranks, [&](peerbus::bootstrap& boot) {
      if (pin) bench::pin_this_thread(boot.rank().index());
      return run_over(boot, chosen, peerbus::loopback{boot});
    });
  return peerbus::run_local(chosen.ranks,
                            [&](peerbus::bootstrap& boot) { return run_process(boot, chosen); },
                            {.pin = pin});
}

}  // namespace

int main(int argc, char** argv) {
  const auto parsed = coll_bench::parse(argc, argv);
  if (const int* status = std::get_if<int>(&parsed)) return *status;
  const auto& chosen = std::get<options>(parsed);
  try {
    if (peerbus::environment_bootstrap::launched()) {
      if (chosen.transport != "loopback") return run_launched(chosen);
      std::fprintf(stderr,
                   "--transport: loopback given, whose ranks are threads, but a launcher "
                   "has started processes; expected ub or puts\n");
      return bad_command_line;
    }
    if (chosen.with_mpi) {
      std::fprintf(stderr,
                   "--mpi: given without a launcher; expected to be started as: mpirun -n "
                   "2 coll_bench --mpi\n");
      return bad_command_line;
    }
    return start(chosen);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "coll_bench: %s\n", problem.what());
    return 1;
  }
}
