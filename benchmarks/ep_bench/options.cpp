// SPDX-License-Identifier: MIT
#include "ep_bench/options.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/relay.hpp>

#include "ep_bench/rank.hpp"
#include "support/check_network.hpp"

namespace ep_bench {
namespace {

template <class Number>
bool read_whole(const std::string& text, Number& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  return code == std::errc{} && stop == end;
}

/// Leaves the number in its plain form: CLI11 would read 010 as octal.
CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  const std::string range = std::to_string(least) + " to " + std::to_string(most);
  return {[=](std::string& given) {
            std::uint64_t value = 0;
            const bool fits = read_whole(given, value) && value >= least && value <= most;
            if (!fits) return "'" + given + "' given, expected a whole number from " + range;
            given = std::to_string(value);
            return std::string{};
          },
          range, "whole number"};
}

CLI::Validator one_of(const std::vector<std::string>& choices) {
  std::string in_words;
  std::string in_help;
  for (const std::string& choice : choices) {
    if (!in_words.empty()) in_words += choice == choices.back() ? " or " : ", ";
    in_words += choice;
    in_help += (in_help.empty() ? "" : "|") + choice;
  }
  return {[=](std::string& given) {
            return std::find(choices.begin(), choices.end(), given) != choices.end()
                       ? std::string{}
                       : "'" + given + "' given, expected " + in_words;
          },
          in_help, "choice"};
}

std::optional<double> zipf_exponent(const std::string& routing) {
  if (routing == "uniform") return 0.0;
  constexpr std::string_view prefix = "zipf:";
  double exponent = 0;
  if (routing.rfind(prefix, 0) != 0 || !read_whole(routing.substr(prefix.size()), exponent) ||
      !std::isfinite(exponent) || exponent < 0 || exponent > 100)
    return std::nullopt;
  return exponent;
}

CLI::Validator a_routing() {
  return {[](std::string& given) {
            return zipf_exponent(given)
                       ? std::string{}
                       : "'" + given +
                             "' given, expected uniform, or zipf:S with a number S from 0 to 100 "
                             "such as zipf:1.2";
          },
          "uniform|zipf:S", "routing"};
}

/// Tries to open it before the run, so that an hour of measuring is not lost to a wrong path.
CLI::Validator writable_file() {
  return {[](std::string& given) {
            std::error_code ignored;
            const bool existed = std::filesystem::exists(given, ignored);
            errno = 0;
            const bool opened = std::ofstream{given, std::ios::app}.is_open();
            const std::string reason = std::strerror(errno);
            if (opened && !existed) std::filesystem::remove(given, ignored);
            return opened ? std::string{}
                          : "'" + given + "' cannot be written (" + reason +
                                "), expected the path of a file to create or replace";
          },
          "FILE", "writable file"};
}

CLI::Validator readable_file() {
  return {[](std::string& given) {
            errno = 0;
            const bool opened = std::ifstream{given}.is_open();
            const std::string reason = std::strerror(errno);
            return opened ? std::string{}
                          : "'" + given + "' cannot be read (" + reason +
                                "), expected the path of a file";
          },
          "FILE", "readable file"};
}

/// Numbers with commas between them. Given as one text, as CLI11 would take the number that begins
/// the next argument for one more.
std::vector<std::size_t> list_of(const std::string& option, const std::string& text,
                                 std::size_t most) {
  std::vector<std::size_t> result;
  std::istringstream stream{text};
  for (std::string part; std::getline(stream, part, ',');) {
    std::size_t value = 0;
    if (!read_whole(part, value) || value == 0 || value > most)
      throw CLI::ValidationError{option, "'" + text + "' given, expected whole numbers from 1 to " +
                                             std::to_string(most) + ", such as 1,2,4"};
    result.push_back(value);
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  if (result.empty())
    throw CLI::ValidationError{option, "nothing given, expected whole numbers such as 1,2,4"};
  return result;
}

std::string joined(const std::vector<std::size_t>& values) {
  std::string text;
  for (const std::size_t value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
  return text;
}

CLI::Validator some_seconds() {
  return {[](std::string& given) {
            double value = 0;
            return read_whole(given, value) && std::isfinite(value) && value > 0 && value <= 86'400
                       ? std::string{}
                       : "'" + given + "' given, expected seconds, above 0 and at most 86400";
          },
          "SECONDS", "seconds"};
}

void check_ablation(const options& chosen) {
  const auto refuse = [](const std::string& text) {
    throw CLI::ValidationError{"--ablation", text};
  };
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
  if (chosen.seconds > 0) refuse("given together with --seconds, expected --iters");
}

/// Reads a file of costs.
peerbus::cost_table costs_of(const std::string& path) {
  try {
    return peerbus::cost_table::load(path);
  } catch (const peerbus::error& problem) {
    throw CLI::ValidationError{"--costs", std::string{problem.text()}};
  }
}

/// Checks what belongs to transports by which some ranks are reached over a network.
void check_network(const options& chosen) {
  bench::check_network(chosen, chosen.transport, chosen.ranks,
                       {"ep_bench", verbs_built, fabric_built, "ub or loopback"});
  const auto refuse = [&](const char* option, const std::string& given, const char* expected) {
    bench::refuse_with(chosen.transport, option, given, expected);
  };
  const bool planes = chosen.transport == "planes";
  if (planes && chosen.layout != "compact") refuse("--layout", chosen.layout, "compact there");
  if ((planes || chosen.layout != "compact") && chosen.codec != "int8")
    refuse("--codec", chosen.codec, planes ? "int8 there" : "int8 there, or --layout compact");
  const bool may_relay = chosen.relay != peerbus::moe::relay::never;
  if (!planes && may_relay)
    refuse("--relay", std::string{describe(chosen.relay)}, "--transport planes");
  if (chosen.outputs != "expert")
    refuse("--outputs", chosen.outputs, "expert, as not all ranks can store to another's memory");
  if (!chosen.report.empty()) refuse("--report", chosen.report, "ub or loopback for a report");
  if (chosen.topology) refuse("--topology", "", "ub or loopback for the topology");
}

void check_transport(const options& chosen) {
  if (chosen.has_network()) return check_network(chosen);
  if (!chosen.device.empty() || chosen.gid_index || chosen.queue_pairs != 1 || chosen.groups != 0 ||
      chosen.relay != peerbus::moe::relay::never)
    throw CLI::ValidationError{"--device, --gid-index, --qps, --groups, --relay",
                               "given with --transport " + chosen.transport +
                                   ", expected verbs or planes (--device: or fabric)"};
  if (chosen.bootstrap == "tcp")
    throw CLI::ValidationError{
        "--bootstrap", "tcp given with --transport " + chosen.transport +
                           ", whose ranks share memory; expected host, or --transport verbs"};
  if (chosen.transport == "loopback" && chosen.layout != "compact")
    throw CLI::ValidationError{"--layout", chosen.layout +
                                               " given with --transport loopback, expected compact "
                                               "there, or --transport ub"};
}

void check_together(const options& chosen) {
  const bool report = !chosen.report.empty();
  if (chosen.topology && (chosen.ablation || report))
    throw CLI::ValidationError{
        "--topology",
        std::string{"given with "} + (report ? "--report" : "--ablation") + ", expected alone"};
  if (!chosen.json.empty() && chosen.topology)
    throw CLI::ValidationError{"--json", "given with --topology, which writes none"};
  if (chosen.ablation) check_ablation(chosen);
  check_transport(chosen);
  if (!chosen.peers.empty() && (!report || chosen.ablation))
    throw CLI::ValidationError{"--peers",
                               "given without a report over many sizes, expected --report and no "
                               "--ablation"};

  if (chosen.layout != "automatic" &&
      (!chosen.costs.empty() || chosen.protocol != peerbus::moe::dispatch_protocol::automatic))
    throw CLI::ValidationError{"--protocol, --costs", "given with --layout " + chosen.layout +
                                                          ", expected --layout automatic"};
  if ((chosen.in_slots() || chosen.layout == "automatic") && chosen.codec != "int8")
    throw CLI::ValidationError{"--codec", chosen.codec + " given with --layout " + chosen.layout +
                                              ", expected int8 there"};
  if (chosen.top_k > chosen.experts)
    throw CLI::ValidationError{"--top-k", std::to_string(chosen.top_k) +
                                              " given, expected at most the number of experts, " +
                                              std::to_string(chosen.experts)};
  if (chosen.codec.rfind("fp8", 0) == 0 && chosen.hidden % 128 != 0)
    throw CLI::ValidationError{
        "--hidden",
        std::to_string(chosen.hidden) + " given, expected a multiple of 128 for " + chosen.codec};
  if (chosen.hidden % 16 != 0)
    throw CLI::ValidationError{"--hidden",
                               std::to_string(chosen.hidden) + " given, expected a multiple of 16"};
}

}  // namespace

void complain(const std::string& option, const std::string& text) {
  std::cerr << "ep_bench: " << option << ": " << text << '\n';
}

std::variant<options, int> parse(int argc, char** argv) {
  constexpr std::uint64_t most = std::numeric_limits<std::uint32_t>::max();
  options chosen;
  CLI::App app{
      "Measures MoE dispatch and combine, beside the time that plainly copying and reading the\n"
      "same bytes takes. Starts the ranks itself, or joins those of torchrun, mpirun or srun.",
      "ep_bench"};
  app.option_defaults()->always_capture_default()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--transport", chosen.transport,
                 "ub: processes; loopback: threads; verbs: processes with an RDMA device; fabric: "
                 "processes over libfabric; planes: ub among the ranks of a host, --far between "
                 "hosts")
      ->check(one_of({"ub", "loopback", "verbs", "fabric", "planes"}));
  app.add_option("--far", chosen.far, "what connects hosts, for planes")
      ->check(one_of({"verbs", "fabric"}));
  app.add_option("--provider", chosen.provider, "libfabric's provider, for fabric");
  app.add_option("--groups", chosen.groups,
                 "pretended hosts, for planes: consecutive ranks share one [the real hosts]")
      ->transform(whole_number(1, 4096));
  app.add_option("--relay", chosen.relay,
                 "for planes: always: a token crosses once for each host and is handed on there; "
                 "automatic: where that takes less time")
      ->transform(CLI::CheckedTransformer{std::map<std::string, peerbus::moe::relay>{
          {"never", peerbus::moe::relay::never},
          {"always", peerbus::moe::relay::always},
          {"automatic", peerbus::moe::relay::automatic}}})
      ->default_str("never");
  app.add_option("--device", chosen.device,
                 "name of the RDMA device [the first with an active port], several by commas, or "
                 "of the provider's domain");
  app.add_option("--gid-index", chosen.gid_index,
                 "which address of its port [the first of RoCE v2, IPv4 if there is one]")
      ->transform(whole_number(0, 255));
  app.add_option("--qps", chosen.queue_pairs, "queue pairs to each peer, for verbs")
      ->transform(whole_number(1, 9));
  app.add_option("--bootstrap", chosen.bootstrap,
                 "how ranks of a launcher meet: host: on this host; tcp: over the network, for "
                 "verbs; auto: tcp if the launcher says that there are other hosts")
      ->check(one_of({"auto", "host", "tcp"}));
  auto* const ranks = app.add_option("--ranks", chosen.ranks, "size of the group")
                          ->transform(whole_number(1, 4096));
  app.add_option("--tokens", chosen.tokens, "tokens of each rank")
      ->transform(whole_number(1, most));
  app.add_option("--hidden", chosen.hidden, "channels of a token, a multiple of 16")
      ->transform(whole_number(16, most));
  app.add_option("--top-k", chosen.top_k, "experts of each token")->transform(whole_number(1, 32));
  app.add_option("--experts", chosen.experts, "experts of the group")
      ->transform(whole_number(1, 1 << 20));
  app.add_option("--codec", chosen.codec, "how rows look on the wire")
      ->check(one_of({"bf16", "int8", "fp8", "fp8_ue8m0"}));
  app.add_option("--layout", chosen.layout,
                 "how rows lie: by expert without gaps, by expert in parts of fixed size, once per "
                 "token and rank, or in slots of each source rank, once per token and rank or by "
                 "expert; automatic: by expert, without gaps or in slots")
      ->check(one_of({"compact", "padded", "rank", "slots", "expert_slots", "automatic"}));
  std::string protocol = "automatic";
  app.add_option("--protocol", protocol,
                 "of --layout automatic: counts before the rows, or one phase with slots; "
                 "automatic: the cheaper one")
      ->check(one_of({"automatic", "counts_first", "one_phase"}));
  std::string costs;
  app.add_option("--costs", costs,
                 "measured costs for --layout automatic, as moe_costs writes them [those that the "
                 "library assumes]")
      ->check(readable_file());
  app.add_option("--outputs", chosen.outputs, "where experts leave what combine reads")
      ->check(one_of({"expert", "home"}));
  app.add_option("--stores", chosen.stores,
                 "stores of rows: streaming ones write memory past the caches; automatic: those of "
                 "batches that are large for the caches")
      ->check(one_of({"automatic", "plain", "streaming"}));
  app.add_option("--lanes", chosen.lanes, "threads of a rank that carry one operation together")
      ->transform(whole_number(1, peerbus::moe::max_lanes));
  app.add_option("--routing", chosen.routing,
                 "all experts alike, or their popularity falling as rank^-S")
      ->check(a_routing());
  app.add_option("--iters", chosen.iterations, "timed iterations")
      ->transform(whole_number(1, 10'000'000));
  app.add_option("--warmup", chosen.warmup, "iterations before them")
      ->transform(whole_number(0, 10'000'000));
  app.add_option("--seed", chosen.seed, "of tokens, weights and routing")
      ->transform(whole_number(0, std::numeric_limits<std::uint64_t>::max()));
  app.add_option("--seconds", chosen.seconds,
                 "time no more iterations than fit in so many seconds [no limit]")
      ->check(some_seconds())
      ->default_str("");
  app.add_option("--json", chosen.json, "also write the results there")->check(writable_file());
  bool pin = false;
  auto* const pinning = app.add_flag(
      "--pin,!--no-pin", pin,
      "rank i stays on the i-th usable core, or its lanes on the next ones [as long as "
      "every rank and lane can have its own]");
  app.add_flag("--topology", chosen.topology,
               "instead: show the cores and memory nodes that were found, and where ranks go");
  app.add_flag("--ablation", chosen.ablation,
               "instead: from a basic flow of three collectives to the fused operation, step by "
               "step");
  app.add_option("--report", chosen.report,
                 "instead: measure over many sizes, into one HTML page; --ranks for the sizes of "
                 "batches, --tokens for the sizes of groups; with --ablation: its page")
      ->check(writable_file());
  app.add_option("--peers", chosen.peers,
                 "results of another library for the report, as its benchmark wrote them with "
                 "--json; may be given several times")
      ->check(readable_file())
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  std::string report_tokens = joined(chosen.report_tokens);
  std::string report_ranks = joined(chosen.report_ranks);
  app.add_option("--report-tokens", report_tokens, "numbers of tokens in the report");
  app.add_option("--report-ranks", report_ranks, "numbers of ranks in the report");
  app.add_option("--report-seconds", chosen.report_seconds, "how long the report takes, roughly")
      ->check(some_seconds());

  try {
    app.parse(argc, argv);
    chosen.report_tokens = list_of("--report-tokens", report_tokens, most);
    chosen.report_ranks = list_of("--report-ranks", report_ranks, 4096);
    using peerbus::moe::dispatch_protocol;
    for (const auto known : {dispatch_protocol::counts_first, dispatch_protocol::one_phase})
      if (protocol == describe(known)) chosen.protocol = known;
    if (!costs.empty()) chosen.costs = costs_of(costs);
    check_together(chosen);
  } catch (const CLI::ParseError& found) {
    if (found.get_exit_code() == 0) return app.exit(found);
    std::cerr << "ep_bench: " << found.what() << "\nep_bench --help lists the options.\n";
    return bad_command_line;
  }
  chosen.ranks_given = ranks->count() != 0;
  if (pinning->count() != 0) chosen.pin = pin;
  chosen.zipf = *zipf_exponent(chosen.routing);
  return chosen;
}

}  // namespace ep_bench
