// SPDX-License-Identifier: MIT
#include "ep_bench/options.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/relay.hpp>

#include "ep_bench/rank.hpp"
#include "examples/support/command_line.hpp"
#include "support/network_command_line.hpp"

namespace ep_bench {
namespace {

using programs::refuse;

std::string complaint(const std::string& given, const std::string& text) {
  return "'" + given + "' " + text;
}

bool read_whole(const std::string& text, double& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  return code == std::errc{} && stop == end && std::isfinite(value);
}

/// Tries to open the file before the run, so that an hour of measuring is not lost to a wrong path.
std::string write_complaint(const std::string& given) {
  std::error_code ignored;
  const bool existed = std::filesystem::exists(given, ignored);
  errno = 0;
  const bool opened = std::ofstream{given, std::ios::app}.is_open();
  const std::string reason = std::strerror(errno);
  if (opened && !existed) std::filesystem::remove(given, ignored);
  if (opened) return {};
  return complaint(given, "cannot be written (" + reason +
                              "), expected the path of a file to create or replace");
}

std::string read_complaint(const std::string& given) {
  errno = 0;
  if (std::ifstream{given}.is_open()) return {};
  return complaint(given, "cannot be read (" + std::string{std::strerror(errno)} +
                              "), expected the path of a file");
}

std::string seconds_complaint(const std::string& given) {
  double value = 0;
  if (read_whole(given, value) && value > 0 && value <= 86'400) return {};
  return complaint(given, "given, expected seconds, above 0 and at most 86400");
}

/// Sorts the sizes and leaves each once.
void sort_sizes(std::vector<std::size_t>& sizes) {
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
}

void check_ablation(const options& chosen) {
  const auto refuse = [](const std::string& text) { programs::refuse("--ablation", text); };
  if (chosen.ranks < 2)
    refuse(std::to_string(chosen.ranks) +
           " rank given, expected at least 2, as copies within one process go nowhere");
  if (chosen.transport != "ub")
    refuse(chosen.transport +
           " given as transport, expected ub: its copies go from process to "
           "process");
  if (chosen.codec != "int8")
    refuse(chosen.codec + " given as codec, expected int8, which one of the steps brings in");
  if (chosen.layout != "compact" || chosen.outputs != "expert" || chosen.lanes != 1)
    refuse("compares one layout, expected --layout compact, --outputs expert and --lanes 1");
  if (chosen.tokens_of_ranks.size() > 1)
    refuse("compares ranks with equally many tokens, expected one number for --tokens");
  if (chosen.balance != "none") refuse(chosen.balance + " given for --balance, expected none");
  if (chosen.row_us > 0) refuse("given together with --row-us, expected no work of experts");
  if (chosen.seconds > 0) refuse("given together with --seconds, expected --iters");
}

/// Checks that each rank sees the rows of all, by which it plans.
void check_incremental(const options& chosen) {
  if (chosen.layout != "compact" && chosen.layout != "padded")
    refuse("--balance", "incremental given with --layout " + chosen.layout +
                            ", expected compact or padded, which count the rows of all ranks");
  if (chosen.relay != peerbus::moe::relay::never)
    refuse("--balance", "incremental given with --relay " + std::string{describe(chosen.relay)} +
                            ", expected never, as then a rank only counts its own rows");
}

/// Reads a file of costs.
peerbus::cost_table costs_of(const std::string& path) {
  try {
    return peerbus::cost_table::load(path);
  } catch (const peerbus::error& problem) {
    refuse("--costs", std::string{problem.text()});
  }
}

/// Checks what belongs to transports by which some ranks are reached over a network.
void check_network(const options& chosen) {
  bench::check_network(chosen, chosen.transport, chosen.ranks, "ep_bench", "ub or loopback");
  const auto refuse = [&](const char* option, const std::string& given,
                          const std::string& expected) {
    bench::refuse_with(chosen.transport, option, given, expected);
  };
  const bool planes = chosen.transport == "planes";
  if (!planes && chosen.relay != peerbus::moe::relay::never)
    refuse("--relay", std::string{describe(chosen.relay)}, "--transport planes");
  if (chosen.outputs != "expert")
    refuse("--outputs", chosen.outputs, "expert, as not all ranks can store to another's memory");
  if (!chosen.report.empty()) refuse("--report", chosen.report, "ub or loopback for a report");
  if (chosen.topology) refuse("--topology", "", "ub or loopback for the topology");
}

void check_transport(const options& chosen) {
  if (chosen.has_network()) return check_network(chosen);
  bench::refuse_network_options(chosen, chosen.transport);
  if (chosen.relay != peerbus::moe::relay::never)
    bench::refuse_with(chosen.transport, "--relay", std::string{describe(chosen.relay)},
                       "--transport planes");
  if (chosen.bootstrap == "tcp")
    refuse("--bootstrap", "tcp given with --transport " + chosen.transport +
                              ", whose ranks share memory; expected host, or --transport verbs");
}

void check_together(const options& chosen) {
  const bool report = !chosen.report.empty();
  if (chosen.topology && (chosen.ablation || report))
    refuse("--topology",
           std::string{"given with "} + (report ? "--report" : "--ablation") + ", expected alone");
  if (!chosen.json.empty() && chosen.topology)
    refuse("--json", "given with --topology, which writes none");
  if (!chosen.costs_to.empty() && (chosen.topology || chosen.ablation || report))
    refuse("--costs-to", "given with --topology, --ablation or --report, expected one measurement");
  if (!chosen.costs_to.empty() && chosen.stores != "automatic")
    refuse("--costs-to", "given with --stores " + chosen.stores +
                             ", expected --stores automatic, which measures both");
  if (!chosen.trace.empty() && (chosen.topology || chosen.ablation || report))
    refuse("--trace", "given with --topology, --ablation or --report, expected one measurement");
  if (chosen.ablation) check_ablation(chosen);
  check_transport(chosen);
  if (!chosen.peers.empty() && (!report || chosen.ablation))
    refuse("--peers",
           "given without a report over many sizes, expected --report and no --ablation");

  if (chosen.layout != "automatic" && chosen.protocol != peerbus::moe::dispatch_protocol::automatic)
    refuse("--protocol", "given with --layout " + chosen.layout + ", expected --layout automatic");
  if (chosen.top_k > chosen.experts)
    refuse("--top-k", std::to_string(chosen.top_k) +
                          " given, expected at most the number of experts, " +
                          std::to_string(chosen.experts));
  if (chosen.codec.rfind("fp8", 0) == 0 && chosen.hidden % 128 != 0)
    refuse("--hidden", std::to_string(chosen.hidden) + " given, expected a multiple of 128 for " +
                           chosen.codec);
  if (chosen.hidden % 16 != 0)
    refuse("--hidden", std::to_string(chosen.hidden) + " given, expected a multiple of 16");
}

}  // namespace

void complain(const std::string& option, const std::string& text) {
  std::cerr << "ep_bench: " << option << ": " << text << '\n';
}

std::variant<options, int> parse(int argc, char** argv) {
  constexpr std::uint64_t most = std::numeric_limits<std::uint32_t>::max();
  options chosen;
  programs::command_line line{
      "ep_bench",
      "Measures MoE dispatch and combine, beside the time that plainly copying and reading the\n"
      "same bytes takes. Starts the ranks itself, or joins those of torchrun, mpirun or srun."};
  constexpr const char* ranks_group =
      "Ranks and what connects them (--transport planes --groups 2 --relay always)";
  constexpr const char* timing_group = "What is timed (--between expert --lanes 2 --iters 500)";
  line.group(ranks_group);
  line.add("--transport", chosen.transport,
           "ub: processes; loopback: threads; verbs: processes with an RDMA device; fabric: "
           "processes over libfabric; planes: ub among the ranks of a host, --far between hosts")
      .one_of({"ub", "loopback", "verbs", "fabric", "planes"});
  bench::add_network_options(line, chosen, 4096);
  std::string relay = "never";
  line.add("--relay", relay,
           "for planes: always: a token crosses once for each host and is handed on there; "
           "automatic: where that takes less time")
      .one_of({"never", "always", "automatic"});
  line.add("--bootstrap", chosen.bootstrap,
           "how ranks of a launcher meet: host: on this host; tcp: over the network, for verbs; "
           "auto: tcp if the launcher says that there are other hosts")
      .one_of({"auto", "host", "tcp"});
  const programs::option ranks =
      line.add("--ranks", chosen.ranks, "size of the group").whole_number(1, 4096);
  line.group("The batch (--tokens 32 --codec fp8 --layout expert_slots)");
  line.add("--tokens", chosen.tokens_of_ranks,
           "tokens of each rank; of several numbers such as 3,0,128 each rank takes the next")
      .whole_number(0, most);
  line.add("--hidden", chosen.hidden, "channels of a token, a multiple of 16")
      .whole_number(16, most);
  line.add("--top-k", chosen.top_k, "experts of each token").whole_number(1, 32);
  line.add("--experts", chosen.experts, "experts of the group").whole_number(1, 1 << 20);
  line.add("--codec", chosen.codec,
           "how rows look on the wire; fp8_as_given: tokens that are quantised already, without "
           "their scales. Outputs are bf16 (it is ep_bench that lacks logfmt10, for outputs)")
      .one_of({"bf16", "int8", "fp8", "fp8_ue8m0", "fp8_as_given"});
  line.add("--layout", chosen.layout,
           "how rows lie: by expert without gaps, by expert in parts of fixed size, once per token "
           "and rank, or in slots of each source rank, once per token and rank or by expert; "
           "automatic: by expert, without gaps or in slots")
      .one_of({"compact", "padded", "rank_major", "slots", "expert_slots", "automatic"});
  std::string protocol = "automatic";
  line.add("--protocol", protocol,
           "of --layout automatic: counts before the rows, or one phase with slots; automatic: the "
           "cheaper one")
      .one_of({"automatic", "counts_first", "one_phase"});
  std::string costs;
  line.add("--costs", costs,
           "measured costs for --layout automatic, --relay automatic and --stores automatic, as "
           "moe_costs and --costs-to write them [those that the library assumes]")
      .check("FILE", read_complaint);
  line.add("--outputs", chosen.outputs, "where experts leave what combine reads")
      .one_of({"expert", "home"});
  line.group(timing_group);
  line.add("--stores", chosen.stores,
           "stores of rows: streaming ones write memory past the caches; automatic: what the "
           "exchange finds out by trial")
      .one_of({"automatic", "plain", "streaming"});
  line.add("--costs-to", chosen.costs_to,
           "file for the times of stores that rank 0 finds out by trial; other costs that it has "
           "stay there")
      .check("FILE", write_complaint);
  std::string between = "weights";
  line.add("--between", between,
           "what comes between the operations that are timed, ours and the limit's: nothing; "
           "expert: "
           "each row is read once, and each output written; weights: that, and before each "
           "operation --weights are read")
      .one_of({"nothing", "expert", "weights"});
  const programs::option weights =
      line.add("--weights", chosen.weights_mib,
               "MiB of memory of its own that each core reads; ranks that share one divide them")
          .whole_number(1, 1 << 20);
  line.add("--lanes", chosen.lanes, "threads of a rank that carry one operation together")
      .whole_number(1, peerbus::moe::max_lanes);
  line.group("Load of experts (--routing zipf:1 --balance spread --row-us 2)");
  line.add(
          "--routing", chosen.routing,
          "which experts tokens choose: all alike; popularity falling as place^-S, in random order "
          "or in that of their numbers; L of G groups first; those of the first rank; "
          "CollectiveX's, with its weights, by SEED (67 if none) and not by --seed; or the ids "
          "of a file, [tokens, top_k], which ranks take one after the other")
      .check(routing_forms, routing_complaint);
  const programs::option balance =
      line.add("--balance", chosen.balance,
               "where experts lie: none: dealt out in order; eplb: as DeepSeek's balancer plans it "
               "for this routing, a second place of an expert at a rank being vacant; "
               "spread: as our planner does, which never has; incremental: first dealt out, then "
               "few change places at a time, by the rows counted last. With --json, results by "
               "iteration too")
          .one_of({"none", "eplb", "spread", "incremental"});
  const programs::option spare =
      line.add("--spare", chosen.spare, "places for replicas at each rank, with --balance")
          .whole_number(0, 1 << 16);
  const std::pair<const char*, programs::option> of_incremental[] = {
      {"--replan-after", line.add("--replan-after", chosen.replan_after,
                                  "iterations from one plan of --balance incremental to the next")
                             .whole_number(1, 10'000'000)},
      {"--moves", line.add("--moves", chosen.moves, "the most experts that move by such a plan")
                      .whole_number(1, 1 << 20)}};
  line.add("--row-us", chosen.row_us,
           "microseconds for which a rank computes for each row of its experts")
      .number(0, 1e6);
  line.group(timing_group);
  line.add("--iters", chosen.iterations, "timed iterations").whole_number(1, 10'000'000);
  line.add("--warmup", chosen.warmup, "iterations before them").whole_number(0, 10'000'000);
  line.add("--seed", chosen.seed, "of tokens, weights and routing")
      .whole_number(0, std::numeric_limits<std::uint64_t>::max());
  line.add("--seconds", chosen.seconds,
           "time no more iterations than fit in so many seconds [no limit]")
      .check("SECONDS", seconds_complaint);
  line.group("Results (--json results.json --quiet-or-fail)");
  line.add("--json", chosen.json, "also write the results there").check("FILE", write_complaint);
  line.add("--trace", chosen.trace,
           "also record the latest events of all ranks, in a file for ui.perfetto.dev")
      .check("FILE", write_complaint);
  line.flag("--quiet-or-fail", chosen.noise.quiet_or_fail,
            "exit with status 1 if other programs run, or if a p90 is over twice its p50");
  line.group(ranks_group);
  bool pin = false;
  const programs::option pinning =
      line.flag("--pin,!--no-pin", pin,
                "rank i stays on the i-th usable core, or its lanes on the next ones [as long as "
                "every rank and lane can have its own]");
  line.flag("--topology", chosen.topology,
            "instead: show the cores and memory nodes that were found, and where ranks go");
  line.group("Reports (--report page.html --report-ranks 2,8)");
  line.flag("--ablation", chosen.ablation,
            "instead: from a basic flow of three collectives to the fused operation, step by step");
  line.add("--report", chosen.report,
           "instead: measure over many sizes, into one HTML page; --ranks for the sizes of "
           "batches, --tokens for the sizes of groups; with --ablation: its page")
      .check("FILE", write_complaint);
  line.add("--peers", chosen.peers,
           "results of another library for the report, as its benchmark wrote them with --json; "
           "may be given several times")
      .check("FILE", read_complaint);
  const std::pair<const char*, programs::option> of_reports[] = {
      {"--report-tokens",
       line.add("--report-tokens", chosen.report_tokens, "numbers of tokens in the report")
           .whole_number(1, most)},
      {"--report-ranks",
       line.add("--report-ranks", chosen.report_ranks, "numbers of ranks in the report")
           .whole_number(1, 4096)},
      {"--report-seconds",
       line.add("--report-seconds", chosen.report_seconds, "how long the report takes, roughly")
           .check("SECONDS", seconds_complaint)}};

  const auto check = [&] {
    sort_sizes(chosen.report_tokens);
    sort_sizes(chosen.report_ranks);
    using peerbus::moe::dispatch_protocol;
    for (const auto known : {dispatch_protocol::counts_first, dispatch_protocol::one_phase})
      if (protocol == describe(known)) chosen.protocol = known;
    for (const auto known : {peerbus::moe::relay::always, peerbus::moe::relay::automatic})
      if (relay == describe(known)) chosen.relay = known;
    if (!costs.empty()) chosen.costs = costs_of(costs);
    if (between == "nothing") chosen.between = between::nothing;
    if (between == "expert") chosen.between = between::expert;
    if (weights.given() && chosen.between != between::weights)
      refuse("--weights", std::to_string(chosen.weights_mib) + " given with --between " + between +
                              ", expected --between weights");
    chosen.tokens = *std::ranges::max_element(chosen.tokens_of_ranks);
    if (chosen.tokens_before(chosen.ranks) == 0)
      refuse("--tokens", "0 given for all ranks, expected a rank with a token");
    if (chosen.balance != "none" && !chosen.report.empty())
      refuse("--balance", chosen.balance + " given with --report, expected none");
    if (spare.given() && chosen.balance == "none")
      refuse("--spare",
             std::to_string(chosen.spare) + " given without --balance eplb, spread or incremental");
    for (const auto& [name, option] : of_incremental)
      if (option.given() && chosen.balance != "incremental")
        refuse(name, "given with --balance " + chosen.balance + ", expected --balance incremental");
    chosen.balance_given = balance.given();
    if (chosen.balance == "incremental") check_incremental(chosen);
    check_together(chosen);
    chosen.pattern = read_routing(chosen.routing, chosen.experts, chosen.top_k);
    for (const auto& [name, option] : of_reports)
      if (option.given() && (chosen.report.empty() || chosen.ablation))
        refuse(name, "given without a report over many sizes, expected --report and no --ablation");
  };
  if (const auto status = line.parse(argc, argv, check)) return *status;
  chosen.ranks_given = ranks.given();
  if (pinning.given()) chosen.pin = pin;
  return chosen;
}

}  // namespace ep_bench
