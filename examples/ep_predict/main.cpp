// SPDX-License-Identifier: MIT
//
// Predicts how long a dispatch and a combine take among many ranks, by running the library's own
// code in a simulation of a platform. `ep_predict --help` lists the options; docs/simulation.md
// says what the model has.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/moe/config.hpp>
#include <peerbus/transport/simulated/links.hpp>

#include "aggregated.hpp"
#include "bounds.hpp"
#include "examples/support/command_line.hpp"
#include "model_check.hpp"
#include "platform_file.hpp"
#include "prediction.hpp"
#include "referee.hpp"
#include "report.hpp"
#include "results.hpp"
#include "simgrid_links.hpp"

namespace {

using ep_predict::arrival_spread;
using ep_predict::load;
using ep_predict::platform_file;
using ep_predict::prediction;

struct options {
  std::vector<std::string> command;
  std::string platform;
  std::vector<std::size_t> ranks{8};
  std::vector<std::size_t> tokens{128};
  load batch;
  std::size_t near_levels = 0;
  bool has_arrival = false;      ///< whether the command line replaces the file's
  bool has_near_levels = false;  ///< likewise
  std::string model = "fibres";
  std::string engine = "ports";
  std::size_t streams = 4;
  std::size_t samples = 0;
  bool check = false;
  std::string trace;
  std::string json;
  std::string page;
  bool csv = false;
  bool bounds = false;
  bool advice = false;
  double experts_us = 0;
  bool residuals = false;
  std::string library;
};

/// Refuses options that `with` does not have.
class refusal {
 public:
  explicit refusal(std::string with) : with_{std::move(with)} {}
  void operator()(const char* option, bool is_given) const {
    if (is_given) programs::refuse(option, "given with " + with_ + ", which does not have it");
  }

 private:
  std::string with_;
};

/// Refuses files of predictions, which comparisons do not make.
void refuse_of_comparisons(const options& chosen, const refusal& refuse_with) {
  refuse_with("--json", !chosen.json.empty());
  refuse_with("--report", !chosen.page.empty());
}

/// Refuses options that only the simulation of all ranks has.
void refuse_of_models(const options& chosen) {
  if (chosen.model == "fibres" && !chosen.check) {
    if (chosen.samples != 0)
      programs::refuse("--samples", "given with --model fibres, expected aggregated or --check");
    return;
  }
  const refusal refuse_with{chosen.check ? "--check" : "--model aggregated"};
  refuse_with("--engine", chosen.engine != "ports");
  refuse_with("--skew-us", chosen.batch.arrival.skew_us != 0);
  refuse_with("--straggler-share", chosen.batch.arrival.straggler_share != 0);
  refuse_with("--bounds", chosen.bounds);
  refuse_with("--advice", chosen.advice);
  refuse_with("--trace", !chosen.trace.empty());
  refuse_with("--relay", chosen.batch.relay != "never");
  refuse_with("--residuals", chosen.residuals);
  if (chosen.check) refuse_of_comparisons(chosen, refuse_with);
  refuse_with("--csv", chosen.csv && chosen.check);
}

/// Refuses an engine that this program lacks, and options that only ports have.
void refuse_of_engines(const options& chosen) {
  if (chosen.engine == "ports") return;
  if (!ep_predict::has_simgrid())
    programs::refuse("--engine", chosen.engine +
                                     " given, but this program was built without SimGrid "
                                     "(Debian: libsimgrid-dev); install it and configure anew");
  const refusal refuse_with{"--engine " + chosen.engine};
  refuse_with("--bounds", chosen.bounds);
  refuse_with("--advice", chosen.advice);
  if (chosen.engine == "simgrid") return;
  refuse_with("--trace", !chosen.trace.empty());
  refuse_with("--residuals", chosen.residuals);
  refuse_of_comparisons(chosen, refuse_with);
}

/// Refuses a command line whose options contradict each other.
void check(const options& chosen) {
  const load& batch = chosen.batch;
  for (const std::size_t ranks : chosen.ranks)
    if ((chosen.model == "fibres" || chosen.check) && ranks > peerbus::moe::max_ranks)
      programs::refuse("--ranks", std::to_string(ranks) + " given, expected at most " +
                                      std::to_string(peerbus::moe::max_ranks) +
                                      " unless --model is aggregated");
  for (const std::size_t ranks : chosen.ranks)
    for (const std::size_t tokens : chosen.tokens) {
      load one = batch;
      one.ranks = ranks;
      one.tokens = tokens;
      if (const auto found = ep_predict::complaint_about(one); !found.empty())
        programs::refuse("batch", found);
    }
  if (const auto found = ep_predict::complaint_about(batch.arrival); !found.empty())
    programs::refuse("arrival", found);
  refuse_of_models(chosen);
  refuse_of_engines(chosen);
  if (!chosen.trace.empty() && (chosen.ranks.size() != 1 || chosen.tokens.size() != 1))
    programs::refuse("--trace", "given with several --ranks or --tokens, expected one of each");
  if (!chosen.trace.empty() && chosen.residuals)
    programs::refuse("--trace", "given with --residuals, expected either");
  if (!chosen.library.empty() && !chosen.residuals)
    programs::refuse("--library", "given without --residuals, expected both");
  if (chosen.residuals) refuse_of_comparisons(chosen, refusal{"--residuals"});
  if (!chosen.page.empty() && !ep_predict::has_page())
    programs::refuse("--report",
                     "given, but this program was built without the benchmarks, whose "
                     "page it needs; set PEERBUS_BUILD_BENCHMARKS and configure anew");
  if (chosen.csv && (chosen.bounds || chosen.advice || chosen.residuals))
    programs::refuse("--csv", "given with --bounds, --advice or --residuals, expected either");
}

std::optional<int> parse(int argc, char** argv, options& chosen) {
  programs::command_line line{"ep_predict",
                              "Predicts the latency of dispatch and combine by a simulation."};
  load& batch = chosen.batch;
  line.add("platform", chosen.platform, "file that describes the machine").required();
  line.add("--ranks", chosen.ranks, "numbers of ranks").whole_number(1, 1'000'000);
  line.add("--tokens", chosen.tokens, "tokens of a rank").whole_number(1, 1 << 16);
  line.add("--hidden", batch.hidden, "channels, a multiple of 16, or of 128 with fp8 codecs")
      .whole_number(16, 1 << 20);
  line.add("--top-k", batch.top_k).whole_number(1, 32);
  line.add("--experts", batch.experts).whole_number(1, 1 << 20);
  line.add("--layout", batch.layout, "how rows lie").one_of(ep_predict::layouts());
  line.add("--codec", batch.codec, "what rows consist of").one_of(ep_predict::codecs());
  line.add("--relay", batch.relay, "whether a token crosses once per group of near ranks")
      .one_of(ep_predict::relays());
  const auto near = line.add("--near-levels", chosen.near_levels,
                             "ranks that share one of so many levels are near, instead of what the "
                             "platform says: they load and store each other's memory")
                        .whole_number(0, 16);
  line.add("--rounds", batch.rounds, "measured rounds").whole_number(1, 1000);
  line.add("--seed", batch.seed, "of the routing and of late ranks").whole_number(0, 1 << 30);
  line.group("Models");
  line.add("--model", chosen.model,
           "fibres: runs the library on all ranks; aggregated: computes sampled ranks")
      .one_of({"fibres", "aggregated"});
  line.add("--samples", chosen.samples,
           "ranks that the aggregated model computes; 0: all up to 2000, then fewer")
      .whole_number(0, 1'000'000);
  line.add("--engine", chosen.engine,
           "network: ports of the platform; SimGrid, whose flows share cards by max-min fairness; "
           "or both, which are compared, and fail if flows that share nothing differ by over 5 %")
      .one_of({"ports", "simgrid", "both"});
  const auto streams =
      line.add("--streams", chosen.streams,
               "messages that a card sends at once in SimGrid; 0: all, which takes long")
          .whole_number(0, 1 << 16);
  line.flag(
      "--check", chosen.check,
      "compare the aggregated model with the fibres, and fail if times differ by over 1 %, or over "
      "5 % if not all ranks are sampled");
  line.group("Ranks that do not begin at once (instead of what the platform says)");
  arrival_spread& spread = batch.arrival;
  const auto skew = line.add("--skew-us", spread.skew_us,
                             "mean of the time by which a rank calls an operation late")
                        .number(0, 1e6);
  line.add("--skew-shape", spread.skew_shape, "distribution of that time")
      .one_of(ep_predict::skew_shapes());
  const auto share = line.add("--straggler-share", spread.straggler_share,
                              "probability that a rank is slow in an operation")
                         .number(0, 1);
  line.add("--straggler-factor", spread.straggler_factor,
           "start-up and encoding of a slow rank take so many times as long")
      .number(1, 1e4);
  line.group("Output");
  line.flag("--csv", chosen.csv, "print a line for each operation, for a table");
  line.flag(
      "--bounds", chosen.bounds,
      "print which share of a time goes when start-up, ports, latency, the rank's own work or "
      "skew cost nothing, each in a simulation of its own; shares overlap");
  line.flag("--advice", chosen.advice,
            "print the fastest layout, whether two levels pay, how few tokens are efficient, and "
            "how much of the exchange two batches in flight hide");
  const auto experts = line.add("--experts-us", chosen.experts_us,
                                "time that experts compute for a batch, for --advice; 0: as long "
                                "as its dispatch and combine")
                           .number(0, 1e9);
  line.add("--json", chosen.json, "file for all times as JSON");
  line.add("--report", chosen.page, "file for a page with pictures of times over ranks and tokens");
  line.add("--trace", chosen.trace, "file for what all ranks do in virtual time, for Perfetto");
  line.flag("--residuals", chosen.residuals,
            "predict the published rows of the file instead of --ranks and the like, and compare");
  line.add("--library", chosen.library, "rows of this library only, for --residuals");
  const auto status = line.parse(argc, argv, [&] {
    check(chosen);
    if (streams.given() && chosen.engine == "ports")
      programs::refuse("--streams", "given with --engine ports, expected simgrid or both");
    if (experts.given() && !chosen.advice)
      programs::refuse("--experts-us", "given without --advice, expected both");
  });
  chosen.has_arrival = skew.given() || share.given();
  chosen.has_near_levels = near.given();
  return status;
}

/// Calls `visit` with each load that the command line asks for.
template <class Visit>
void for_each_load(const options& chosen, const platform_file& given, Visit&& visit) {
  for (const std::size_t ranks : chosen.ranks)
    for (const std::size_t tokens : chosen.tokens) {
      load batch = chosen.batch;
      batch.ranks = ranks;
      batch.tokens = tokens;
      if (!chosen.has_arrival) batch.arrival = given.arrival;
      visit(batch);
    }
}

void predict_all(const options& chosen, const platform_file& given,
                 peerbus::simulated_links* links) {
  const bool is_aggregated = chosen.model == "aggregated";
  ep_predict::print_header(chosen.batch, given, chosen.engine, chosen.csv);
  ep_predict::results kept{chosen.batch, given, is_aggregated ? chosen.model : chosen.engine,
                           chosen.command};
  for_each_load(chosen, given, [&](const load& batch) {
    const prediction found =
        is_aggregated ? predict_aggregated(batch, given.own, given.platform, chosen.samples)
                      : predict(batch, given.own, given.platform, chosen.trace, links);
    ep_predict::print_row(batch, found, chosen.csv);
    kept.add(batch, found);
    if (is_aggregated && !chosen.csv)
      ep_predict::print_flags(batch, dispatch_flags(batch, given.platform));
    if (chosen.bounds) {
      const auto bounds = bounds_of(batch, given, found);
      ep_predict::print_bounds(bounds);
      kept.add(bounds);
    }
    if (chosen.advice) {
      const auto advice = advice_for(batch, given, found, chosen.experts_us);
      ep_predict::print_advice(advice);
      kept.add(advice);
    }
  });
  kept.write(chosen.json, chosen.page);
}

/// Compares the models for all loads. Returns whether they agree.
bool check_all(const options& chosen, const platform_file& given) {
  ep_predict::model_check models{given.own, given.platform, chosen.samples};
  for_each_load(chosen, given, [&](const load& batch) { models.compare(batch); });
  return models.agrees();
}

/// Compares ports and links for all loads. Returns whether they agree.
bool referee_all(const options& chosen, const platform_file& given,
                 peerbus::simulated_links& links) {
  ep_predict::referee compared{given, links, chosen.csv};
  for_each_load(chosen, given, [&](const load& batch) { compared.compare(batch); });
  return compared.agrees();
}

/// Does what the command line asks for, by `links` if they are not null. Returns the exit status.
int run(const options& chosen, const platform_file& given, peerbus::simulated_links* links) {
  if (chosen.check) return check_all(chosen, given) ? 0 : 1;
  if (chosen.engine == "both") return referee_all(chosen, given, *links) ? 0 : 1;
  if (chosen.residuals)
    ep_predict::print_residuals(given, chosen.library, links);
  else
    predict_all(chosen, given, links);
  return 0;
}

/// Returns the most ranks of all loads.
std::size_t most_ranks(const options& chosen, const platform_file& given) {
  std::size_t most = 1;
  if (chosen.residuals)
    for (const auto& row : given.published) most = std::max(most, row.batch.ranks);
  else
    most = std::ranges::max(chosen.ranks);
  return most;
}

}  // namespace

int main(int argc, char** argv) {
  options chosen;
  chosen.command.assign(argv, argv + argc);
  if (const auto status = parse(argc, argv, chosen)) return *status;
  try {
    platform_file given = ep_predict::read_platform(chosen.platform);
    if (chosen.has_near_levels) given.platform.near_levels = chosen.near_levels;
    if (!chosen.residuals)  // Those of the file have been checked.
      for (const std::size_t ranks : chosen.ranks) ep_predict::check_ranks(given, ranks);
    if (chosen.engine == "ports") return run(chosen, given, nullptr);
    int status = 1;
    ep_predict::with_simgrid(
        given.platform, most_ranks(chosen, given), chosen.streams,
        [&](peerbus::simulated_links& links) { status = run(chosen, given, &links); });
    return status;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "ep_predict: %s\n", problem.what());
    return 1;
  }
}
