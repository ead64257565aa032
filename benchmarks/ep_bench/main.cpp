// SPDX-License-Identifier: MIT
//
// MoE dispatch and combine between ranks of this host, beside the time that plainly copying and
// reading the same bytes takes in the same run. `ep_bench --help` lists the options.
#include <cstdio>
#include <exception>
#include <string>
#include <variant>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/environment.hpp>

#include "ep_bench/launch.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/rank.hpp"
#include "ep_bench/report.hpp"
#include "ep_bench/report/write_report.hpp"
#include "ep_bench/result_json.hpp"
#include "ep_bench/topology.hpp"
#include "support/cost_file.hpp"
#include "support/join_group.hpp"
#include "support/machine.hpp"
#include "support/noise.hpp"

namespace {

using ep_bench::options;

void show(const options& chosen, const ep_bench::group& who, const ep_bench::outcome& result) {
  const auto where = bench::machine::here();
  print(chosen, who, where, result);
  if (!result.learned.empty() && !chosen.costs_to.empty())
    bench::merge_costs(chosen.costs_to, result.learned);
  else if (!chosen.costs_to.empty())
    std::printf("costs     none found out for %s\n", chosen.costs_to.c_str());
  if (!chosen.json.empty()) bench::write_json(chosen.json, result_json(chosen, who, where, result));
}

int refuse(const char* option, const std::string& text) {
  ep_bench::complain(option, text);
  return ep_bench::bad_command_line;
}

/// What a rank does that a launcher has started.
int run_launched(peerbus::bootstrap& boot, const options& chosen) {
  if (chosen.ranks_given && chosen.ranks != boot.size())
    return refuse("--ranks", std::to_string(chosen.ranks) +
                                 " given, expected as many as the launcher has started, " +
                                 std::to_string(boot.size()));
  options here = chosen;
  here.ranks = boot.size();
  if (chosen.topology) {
    print_topology(boot, here);
    return 0;
  }
  here.noise.busy_cores = bench::busy_cores(boot);
  if (bench::refuses_noise("ep_bench", here.noise, bench::signs_of_noise(here.noise), boot.rank()))
    return 1;
  if (chosen.ablation) {
    if (here.ranks < 2)
      return refuse("--ablation",
                    "given with 1 rank, expected at least 2, as copies within one "
                    "process go nowhere");
    return run_ablation(boot, here, ep_bench::placement::by_launcher);
  }
  return run_process(boot, here, ep_bench::placement::by_launcher, show);
}

int join_launched(const options& chosen) {
  if (chosen.transport == "loopback")
    return refuse("--transport",
                  "loopback given, whose ranks are threads of one process, but a launcher has "
                  "started processes; expected ub, verbs, fabric or planes");
  if (!chosen.report.empty() && !chosen.ablation)
    return refuse("--report",
                  "given, which starts groups of several sizes itself, but a launcher has started "
                  "processes; expected to be started once, without a launcher");
  // Ranks that share memory are on one host.
  const auto boot = bench::join_group(chosen.has_network() ? chosen.bootstrap : "host");
  return run_launched(*boot, chosen);
}

}  // namespace

int main(int argc, char** argv) {
  const auto parsed = ep_bench::parse(argc, argv);
  if (const int* status = std::get_if<int>(&parsed)) return *status;
  auto chosen = std::get<options>(parsed);
  try {
    if (peerbus::environment_bootstrap::launched()) return join_launched(chosen);
    if (chosen.topology) return ep_bench::print_topology(chosen);
    chosen.noise.busy_cores = bench::busy_cores();
    if (bench::refuses_noise("ep_bench", chosen.noise, bench::signs_of_noise(chosen.noise)))
      return 1;
    if (!chosen.report.empty() && !chosen.ablation)
      return write_report(chosen, std::vector<std::string>(argv, argv + argc));
    return start_group(chosen, show);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "ep_bench: %s\n", problem.what());
    return 1;
  }
}
