// SPDX-License-Identifier: MIT
#include "coll_bench/options.hpp"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/collective/algorithm.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/error.hpp>

#include "coll_bench/elements.hpp"
#include "coll_bench/mpi_calls.hpp"
#include "coll_bench/rank.hpp"
#include "examples/support/command_line.hpp"
#include "support/network_command_line.hpp"

namespace coll_bench {
namespace {

/// Checks what belongs to transports by which some ranks are reached over a network.
void check_network(const options& chosen) {
  if (chosen.has_network())
    return bench::check_network(chosen, chosen.transport, chosen.ranks, "coll_bench",
                                "ub, puts or loopback");
  bench::refuse_network_options(chosen, chosen.transport);
}

}  // namespace

std::variant<options, int> parse(int argc, char** argv) {
  options chosen;
  chosen.command.assign(argv, argv + argc);
  programs::command_line line{
      "coll_bench",
      "Collective operations between ranks, with the columns and options of nccl-tests, beside the "
      "time of plainly copying as many bytes.\n"
      "Beside Open MPI, in turns in the same processes: mpirun -n 2 coll_bench --mpi"};
  std::vector<std::string> names{"all_reduce"};
  const std::vector<std::string> known{operation_names.begin(), operation_names.end()};
  std::vector<std::string> accepted = known;
  accepted.emplace_back("all");
  const auto& algorithms = peerbus::collective::algorithm_names;
  std::string by{name_of(peerbus::collective::algorithm::automatic)};
  std::string costs;
  line.group("Operations (--op all_gather,reduce -b 8 -e 64K)");
  line.add("--op", names, "operations, or all").by_commas().one_of(accepted);
  line.add("-b,--least", chosen.least_bytes, "smallest size, such as 8 or 64K").bytes();
  line.add("-e,--most", chosen.most_bytes, "largest size").bytes();
  line.add("-f,--factor", chosen.factor, "from a size to the next").whole_number(2, 1 << 30);
  line.add("--type", chosen.type, "of elements").one_of(element_names());
  const programs::option redop = line.add("--redop", chosen.reduction, "of operations that reduce")
                                     .one_of({"sum", "prod", "min", "max"});
  const programs::option root =
      line.add("--root", chosen.root, "rank of operations that have a root [0]");
  line.add("-n,--iters", chosen.iterations, "calls that are timed together")
      .whole_number(1, 1 << 30);
  line.add("-w,--warmup", chosen.warmup, "calls before the first that is timed");
  line.add("--turns", chosen.turns, "how often each is timed; the median counts")
      .whole_number(1, 1 << 20);
  line.add("-c,--check", chosen.check, "1: count wrong elements before and after");
  line.group("Ranks and what connects them (--ranks 4 --transport planes --groups 2)");
  const programs::option ranks =
      line.add("--ranks", chosen.ranks, "size of the group").whole_number(1, 1024);
  line.add("--transport", chosen.transport,
           "ub; loopback: ranks are threads; puts: ub without its peer memory; verbs; fabric; "
           "planes: ub among the ranks of a host, --far between hosts")
      .one_of({"ub", "loopback", "puts", "verbs", "fabric", "planes"});
  bench::add_network_options(line, chosen, 1024);
  line.group("Operands and what is timed beside (--window --halves 100)");
  line.flag("--window", chosen.in_window, "operands lie in a window, where peers read them");
  line.add("--halves", chosen.compute_us,
           "also time calls beside ranks that compute so many microseconds, one rank in each call: "
           "after whole operations, and between halves")
      .number(0, 1e6);
  line.flag("--mpi", chosen.with_mpi, "time MPI in turns with peerbus");
  line.group("The team (--algorithm ring --scratch 4M)");
  line.add("--scratch", chosen.team.scratch_bytes, "team_options::scratch_bytes").bytes();
  line.add("--one-shot", chosen.team.one_shot_bytes, "team_options::one_shot_bytes").bytes();
  line.add("--window-bytes", chosen.team.window_bytes, "team_options::window_bytes").bytes();
  line.add("--private-bytes", chosen.team.private_bytes, "team_options::private_bytes").bytes();
  line.add("--stream-bytes", chosen.team.stream_bytes, "team_options::stream_bytes").bytes();
  line.add("--algorithm", by, "team_options::algorithm, wherever it is possible")
      .one_of({algorithms.begin(), algorithms.end()});
  const programs::option reorder =
      line.flag("--reorder", chosen.team.may_reorder, "team_options::may_reorder");
  line.add("--costs", costs, "file of team_options::costs, by which algorithms are chosen");
  line.add("--costs-to", chosen.costs_to,
           "measure the costs, print them, choose by them, and replace them in this file");
  line.group("Results (--report page.html --json results.json --quiet-or-fail)");
  line.add("--json", chosen.json, "file for the results");
  line.add("--report", chosen.report,
           "page that shows the results, with pictures of time over bytes");
  line.add("--trace", chosen.trace, "file for the latest events of all ranks, for ui.perfetto.dev");
  line.flag("--quiet-or-fail", chosen.noise.quiet_or_fail,
            "exit with status 1 if other programs run, or if a p90 is over twice its p50");
  const auto check = [&] {
    using programs::refuse;
    chosen.ranks_given = ranks.given();
    chosen.team.algorithm = static_cast<peerbus::collective::algorithm>(
        std::ranges::find(algorithms, by) - algorithms.begin());
    // Other costs in the file that is written stay as they are.
    const bool is_there = !chosen.costs_to.empty() && std::filesystem::exists(chosen.costs_to);
    if (!costs.empty() && !chosen.costs_to.empty())
      refuse("--costs-to", "given with --costs, expected one of them");
    if (is_there) costs = chosen.costs_to;
    try {
      if (!costs.empty()) chosen.team.costs = peerbus::cost_table::load(costs);
    } catch (const peerbus::error& problem) {
      refuse(is_there ? "--costs-to" : "--costs", std::string{problem.text()});
    }
    chosen.operations.clear();
    if (std::ranges::count(names, "all") != 0) names = known;
    for (const std::string& name : names)
      chosen.operations.push_back(
          static_cast<operation>(std::ranges::find(known, name) - known.begin()));
    if (chosen.least_bytes == 0 || chosen.least_bytes > chosen.most_bytes)
      refuse("-b", std::to_string(chosen.least_bytes) + " given, expected 1 to the largest size, " +
                       std::to_string(chosen.most_bytes));
    check_network(chosen);
    const auto some = [&](bool (operation_shape::*has)() const noexcept) {
      return std::any_of(chosen.operations.begin(), chosen.operations.end(),
                         [&](operation which) { return (operation_shape{.which = which}.*has)(); });
    };
    const bool reduces = some(&operation_shape::reduces);
    for (const auto& [name, option] : {std::pair{"--redop", &redop}, {"--reorder", &reorder}})
      if (option->given() && !reduces)
        refuse(name, "given, but --op has no operation that reduces; expected one, or no " +
                         std::string{name});
    if (root.given() && !some(&operation_shape::has_root))
      refuse("--root", std::to_string(chosen.root) +
                           " given, but --op has no operation with a root; expected one, or no "
                           "--root");
    // The ranks of a launcher are not known yet.
    if (root.given() && chosen.root >= chosen.ranks && !peerbus::environment_bootstrap::launched())
      refuse("--root", std::to_string(chosen.root) +
                           " given, expected below the number of ranks, " +
                           std::to_string(chosen.ranks));
    if (chosen.with_mpi && !mpi_built)
      refuse("--mpi", "given, but this program was built without MPI (Debian: libopenmpi-dev)");
    if (chosen.with_mpi && chosen.transport == "loopback")
      refuse("--mpi", "given with --transport loopback, expected ranks that are processes");
    if (chosen.with_mpi && chosen.type == "bf16" && reduces)
      refuse("--type", "bf16 given with --mpi, which cannot reduce it; expected another type");
    if (constexpr std::size_t most = std::numeric_limits<int>::max();
        chosen.with_mpi && chosen.most_bytes > most)
      refuse("-e", std::to_string(chosen.most_bytes) + " given with --mpi, expected at most " +
                       std::to_string(most));
  };
  if (const auto status = line.parse(argc, argv, check)) return *status;
  return chosen;
}

}  // namespace coll_bench
