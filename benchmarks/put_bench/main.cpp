// SPDX-License-Identifier: MIT
//
// Puts between two ranks: latency of a small payload with its signal and bandwidth of messages, by
// peerbus's windows in turns with what else moves bytes there: plain stores and UCX in shared
// memory, libfabric over a network. verbs/compare.sh adds perftest, fabric/compare.sh fi_pingpong.
// `put_bench --help` lists the options.
#include <cstdio>
#include <exception>
#include <variant>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/core/cores.hpp>

#include "put_bench/options.hpp"
#include "put_bench/rank.hpp"
#include "support/join_group.hpp"
#include "support/pin.hpp"

namespace {

using put_bench::options;

int run(peerbus::bootstrap& boot, const options& chosen) {
  if (boot.size() != 2) {
    std::fprintf(stderr, "put_bench: %zu ranks given, expected 2\n", boot.size());
    return 2;
  }
  if (chosen.transport == "fabric") return put_bench::run_fabric(boot, chosen);
  if (chosen.transport == "verbs") return put_bench::run_verbs(boot, chosen);
  return put_bench::run_unified_bus(boot, chosen);
}

int start(const options& chosen) {
  const bool pin = peerbus::usable_cores() >= 2;
  if (chosen.transport == "loopback")
    return peerbus::run_threads(2, [&](peerbus::bootstrap& boot) {
      if (pin) bench::pin_this_thread(boot.rank().index());
      return put_bench::run_loopback(boot, chosen);
    });
  if (peerbus::environment_bootstrap::launched()) {
    const auto boot = bench::join_group(chosen.bootstrap);
    return run(*boot, chosen);
  }
  if (chosen.wants("memory")) return put_bench::show_verbs_memory(chosen);
  return peerbus::run_local(2, [&](peerbus::bootstrap& boot) { return run(boot, chosen); },
                            {.pin = pin});
}

}  // namespace

int main(int argc, char** argv) {
  const auto parsed = put_bench::parse(argc, argv);
  if (const int* status = std::get_if<int>(&parsed)) return *status;
  try {
    return start(std::get<options>(parsed));
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "put_bench: %s\n", problem.what());
    return 1;
  }
}
