// SPDX-License-Identifier: MIT
//
// Collective operations between ranks, with the columns and options of nccl-tests,
// beside plain copies and, if started by mpirun, beside MPI. `coll_bench --help` lists the options.
#include <cstdio>
#include <exception>
#include <string>
#include <variant>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/core/cores.hpp>

#include "coll_bench/options.hpp"
#include "coll_bench/rank.hpp"
#include "support/join_group.hpp"
#include "support/noise.hpp"
#include "support/pin.hpp"

namespace {

using coll_bench::bad_command_line;
using coll_bench::options;

int run_process(peerbus::bootstrap& boot, const options& chosen) {
  return chosen.has_network() ? coll_bench::run_network(boot, chosen)
                              : coll_bench::run_unified_bus(boot, chosen);
}

int run_launched(const options& chosen) {
  const auto boot = bench::join_group(chosen.has_network() ? "auto" : "host");
  if (chosen.ranks_given && chosen.ranks != boot->size()) {
    std::fprintf(stderr, "--ranks: %zu given, expected as many as the launcher has started, %zu\n",
                 chosen.ranks, boot->size());
    return bad_command_line;
  }
  options here = chosen;
  here.noise.busy_cores = bench::busy_cores(*boot);
  if (bench::refuses_noise("coll_bench", here.noise, bench::signs_of_noise(here.noise),
                           boot->rank()))
    return 1;
  return run_process(*boot, here);
}

int start(const options& chosen) {
  const bool pin = chosen.ranks <= peerbus::usable_cores();
  if (chosen.transport == "loopback")
    return peerbus::run_threads(chosen.ranks, [&](peerbus::bootstrap& boot) {
      if (pin) bench::pin_this_thread(boot.rank().index());
      return coll_bench::run_loopback(boot, chosen);
    });
  return peerbus::run_local(chosen.ranks,
                            [&](peerbus::bootstrap& boot) { return run_process(boot, chosen); },
                            {.pin = pin});
}

}  // namespace

int main(int argc, char** argv) {
  const auto parsed = coll_bench::parse(argc, argv);
  if (const int* status = std::get_if<int>(&parsed)) return *status;
  auto chosen = std::get<options>(parsed);
  try {
    if (peerbus::environment_bootstrap::launched()) {
      if (chosen.transport != "loopback") return run_launched(chosen);
      std::fprintf(
          stderr,
          "coll_bench: --transport: loopback given, whose ranks are threads, but a launcher "
          "has started processes; expected ub, puts, verbs, fabric or planes\n");
      return bad_command_line;
    }
    if (chosen.with_mpi) {
      std::fprintf(
          stderr,
          "coll_bench: --mpi: given without a launcher; expected to be started as: mpirun -n "
          "2 coll_bench --mpi\n");
      return bad_command_line;
    }
    chosen.noise.busy_cores = bench::busy_cores();
    if (bench::refuses_noise("coll_bench", chosen.noise, bench::signs_of_noise(chosen.noise)))
      return 1;
    return start(chosen);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "coll_bench: %s\n", problem.what());
    return 1;
  }
}
