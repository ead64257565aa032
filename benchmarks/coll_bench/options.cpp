// SPDX-License-Identifier: MIT
#include "coll_bench/options.hpp"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/error.hpp>

#include "coll_bench/elements.hpp"
#include "coll_bench/mpi_calls.hpp"
#include "coll_bench/rank.hpp"
#include "support/check_network.hpp"

namespace coll_bench {
namespace {

/// Checks what belongs to transports by which some ranks are reached over a network.
void check_network(const options& chosen) {
  if (chosen.has_network())
    return bench::check_network(chosen, chosen.transport, chosen.ranks,
                                {"coll_bench", verbs_built, fabric_built, "ub, puts or loopback"});
  if (!chosen.device.empty() || chosen.gid_index || chosen.queue_pairs != 1 || chosen.groups != 0)
    bench::refuse_with(chosen.transport, "--device, --gid-index, --qps, --groups", "",
                       "verbs, fabric or planes");
}

}  // namespace

std::variant<options, int> parse(int argc, char** argv) {
  options chosen;
  CLI::App app{
      "Collective operations between ranks, with the columns and options of nccl-tests, beside the "
      "time of plainly copying as many bytes.\n"
      "Beside Open MPI, in turns in the same processes: mpirun -n 2 coll_bench --mpi",
      "coll_bench"};
  std::vector<std::string> names{"all_reduce"};
  const std::vector<std::string> known{operation_names.begin(), operation_names.end()};
  std::vector<std::string> accepted = known;
  accepted.emplace_back("all");
  std::size_t least_in_window = 0;
  std::size_t least_streamed = 0;
  std::size_t one_shot_bytes = 0;
  std::string by{name_of(peerbus::collective::algorithm::automatic)};
  std::string costs;
  const auto bytes = CLI::AsSizeValue{false};
  app.add_option("--op", names, "operations, or all")
      ->delimiter(',')
      ->check(CLI::IsMember(accepted))
      ->capture_default_str();
  app.add_option("-b,--least", chosen.least_bytes, "smallest size, such as 8 or 64K")
      ->transform(bytes)
      ->capture_default_str();
  app.add_option("-e,--most", chosen.most_bytes, "largest size")
      ->transform(bytes)
      ->capture_default_str();
  app.add_option("-f,--factor", chosen.factor, "from a size to the next")
      ->check(CLI::Range(std::size_t{2}, std::size_t{1} << 30U))
      ->capture_default_str();
  app.add_option("--type", chosen.type, "of elements")
      ->check(CLI::IsMember(element_names()))
      ->capture_default_str();
  app.add_option("--redop", chosen.reduction)
      ->check(CLI::IsMember(std::vector<std::string>{"sum", "prod", "min", "max"}))
      ->capture_default_str();
  app.add_option("--root", chosen.root)->capture_default_str();
  app.add_option("-n,--iters", chosen.iterations, "calls that are timed together")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 30U))
      ->capture_default_str();
  app.add_option("-w,--warmup", chosen.warmup, "calls before the first that is timed")
      ->capture_default_str();
  app.add_option("--turns", chosen.turns, "how often each is timed; the median counts")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 20U))
      ->capture_default_str();
  app.add_option("-c,--check", chosen.check, "1: count wrong elements before and after")
      ->capture_default_str();
  auto* const ranks = app.add_option("--ranks", chosen.ranks)
                          ->check(CLI::Range(std::size_t{1}, std::size_t{1024}))
                          ->capture_default_str();
  app.add_option(
         "--transport", chosen.transport,
         "ub; loopback: ranks are threads; puts: ub without its peer memory; verbs; fabric; "
         "planes: ub among the ranks of a host, --far between hosts")
      ->check(CLI::IsMember(
          std::vector<std::string>{"ub", "loopback", "puts", "verbs", "fabric", "planes"}))
      ->capture_default_str();
  app.add_option("--far", chosen.far, "what connects hosts, for planes")
      ->check(CLI::IsMember(std::vector<std::string>{"verbs", "fabric"}))
      ->capture_default_str();
  app.add_option("--groups", chosen.groups,
                 "pretended hosts, for planes: consecutive ranks share one [the real hosts]")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1024}));
  app.add_option("--provider", chosen.provider, "libfabric's provider, for fabric")
      ->capture_default_str();
  app.add_option("--device", chosen.device,
                 "name of the RDMA device [the first with an active port], several by commas, or "
                 "of the provider's domain");
  app.add_option("--gid-index", chosen.gid_index,
                 "which address of its port [the first of RoCE v2, IPv4 if there is one]")
      ->check(CLI::Range(std::size_t{0}, std::size_t{255}));
  app.add_option("--qps", chosen.queue_pairs, "queue pairs to each peer, for verbs")
      ->check(CLI::Range(std::size_t{1}, std::size_t{9}))
      ->capture_default_str();
  app.add_flag("--window", chosen.in_window, "operands lie in a window, where peers read them");
  app.add_option("--halves", chosen.compute_us,
                 "also time calls beside ranks that compute so many microseconds, one rank in each "
                 "call: after whole operations, and between halves")
      ->check(CLI::Range(0.0, 1e6));
  app.add_flag("--mpi", chosen.with_mpi, "time MPI in turns with peerbus");
  app.add_option("--scratch", chosen.team.scratch_bytes, "team_options::scratch_bytes")
      ->transform(bytes)
      ->capture_default_str();
  auto* const one_shot =
      app.add_option("--one-shot", one_shot_bytes, "team_options::one_shot_bytes")
          ->transform(bytes);
  auto* const window_bytes =
      app.add_option("--window-bytes", least_in_window, "team_options::window_bytes")
          ->transform(bytes);
  auto* const stream_bytes =
      app.add_option("--stream-bytes", least_streamed, "team_options::stream_bytes")
          ->transform(bytes);
  const auto& algorithms = peerbus::collective::algorithm_names;
  app.add_option("--algorithm", by, "team_options::algorithm, wherever it is possible")
      ->check(CLI::IsMember(std::vector<std::string>{algorithms.begin(), algorithms.end()}))
      ->capture_default_str();
  app.add_flag("--reorder", chosen.team.may_reorder, "team_options::may_reorder");
  app.add_option("--costs", costs, "file of team_options::costs, by which algorithms are chosen");
  app.add_option("--costs-to", chosen.costs_to,
                 "measure the costs, print them, choose by them, and replace them in this file");
  app.add_option("--json", chosen.json, "file for the results");
  try {
    app.parse(argc, argv);
    const auto refuse = [](const char* option, const std::string& text) {
      throw CLI::ValidationError{option, text};
    };
    chosen.ranks_given = ranks->count() != 0;
    if (one_shot->count() != 0) chosen.team.one_shot_bytes = one_shot_bytes;
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
    if (window_bytes->count() != 0) chosen.team.window_bytes = least_in_window;
    if (stream_bytes->count() != 0) chosen.team.stream_bytes = least_streamed;
    chosen.operations.clear();
    if (std::ranges::count(names, "all") != 0) names = known;
    for (const std::string& name : names)
      chosen.operations.push_back(
          static_cast<operation>(std::ranges::find(known, name) - known.begin()));
    if (chosen.least_bytes == 0 || chosen.least_bytes > chosen.most_bytes)
      refuse("-b", std::to_string(chosen.least_bytes) + " given, expected 1 to the largest size, " +
                       std::to_string(chosen.most_bytes));
    check_network(chosen);
    if (chosen.with_mpi && !mpi_built)
      refuse("--mpi", "given, but this program was built without MPI (Debian: libopenmpi-dev)");
    if (chosen.with_mpi && chosen.transport == "loopback")
      refuse("--mpi", "given with --transport loopback, expected ranks that are processes");
    const auto reduces = [](operation which) { return operation_shape{.which = which}.reduces(); };
    if (chosen.with_mpi && chosen.type == "bf16" && std::ranges::any_of(chosen.operations, reduces))
      refuse("--type", "bf16 given with --mpi, which cannot reduce it; expected another type");
    if (constexpr std::size_t most = std::numeric_limits<int>::max();
        chosen.with_mpi && chosen.most_bytes > most)
      refuse("-e", std::to_string(chosen.most_bytes) + " given with --mpi, expected at most " +
                       std::to_string(most));
  } catch (const CLI::ParseError& problem) {
    const int status = app.exit(problem);
    return status == 0 ? 0 : 2;
  }
  return chosen;
}

}  // namespace coll_bench
