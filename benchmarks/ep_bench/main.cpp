// SPDX-License-Identifier: MIT
//
// MoE dispatch and combine between ranks of this host, beside the time that plainly copying and
// reading the same bytes takes in the same run. `ep_bench --help` lists the options.
#include <cstdio>
#include <exception>
#include <string>
#include <variant>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/core/wait.hpp>

#include "ep_bench/options.hpp"
#include "ep_bench/rank.hpp"

namespace {

using ep_bench::options;
using ep_bench::placement;

int join_launched(const options& chosen) {
  if (chosen.transport == "loopback") {
    ep_bench::complain("--transport",
                       "loopback given, whose ranks are threads of one process, but a launcher has "
                       "started processes; expected ub");
    return ep_bench::bad_command_line;
  }
  auto boot = peerbus::environment_bootstrap::from_environment();
  if (chosen.ranks_given && chosen.ranks != boot.size()) {
    ep_bench::complain("--ranks", std::to_string(chosen.ranks) +
                                      " given, expected as many as the launcher has started, " +
                                      std::to_string(boot.size()));
    return ep_bench::bad_command_line;
  }
  options here = chosen;
  here.ranks = boot.size();
  return ep_bench::run_unified_bus(boot, here, placement::by_launcher);
}

int start(const options& chosen) {
  const bool pin = chosen.pin.value_or(chosen.ranks <= peerbus::usable_cores());
  const placement how = pin ? placement::pinned : placement::not_pinned;
  if (chosen.transport == "loopback")
    return peerbus::run_threads(chosen.ranks, [&](peerbus::bootstrap& boot) {
      return ep_bench::run_loopback(boot, chosen, how);
    });
  return peerbus::run_local(
      chosen.ranks,
      [&](peerbus::bootstrap& boot) { return ep_bench::run_unified_bus(boot, chosen, how); },
      {.pin = pin});
}

}  // namespace

int main(int argc, char** argv) {
  const auto parsed = ep_bench::parse(argc, argv);
  if (const int* status = std::get_if<int>(&parsed)) return *status;
  const auto& chosen = std::get<options>(parsed);
  try {
    return peerbus::environment_bootstrap::launched() ? join_launched(chosen) : start(chosen);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "ep_bench: %s\n", problem.what());
    return 1;
  }
}
