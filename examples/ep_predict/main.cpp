// SPDX-License-Identifier: MIT
//
// Predicts how long a dispatch and a combine take among many ranks, by running the library's own
// code in a simulation of a platform. `ep_predict --help` lists the options; docs/simulation.md
// says what the model has.
#include <cstddef>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <peerbus/moe/config.hpp>

#include "aggregated.hpp"
#include "examples/support/command_line.hpp"
#include "model_check.hpp"
#include "platform_file.hpp"
#include "prediction.hpp"

namespace {

using ep_predict::load;
using ep_predict::prediction;

struct options {
  std::string platform;
  std::vector<std::size_t> ranks{8};
  std::vector<std::size_t> tokens{128};
  load batch;
  std::string model = "fibres";
  std::size_t samples = 0;
  bool check = false;
  bool csv = false;
  bool residuals = false;
};

std::optional<int> parse(int argc, char** argv, options& chosen) {
  programs::command_line line{"ep_predict",
                              "Predicts the latency of dispatch and combine by a simulation."};
  load& batch = chosen.batch;
  line.add("platform", chosen.platform, "file that describes the machine").required();
  line.add("--ranks", chosen.ranks, "numbers of ranks").whole_number(1, 1'000'000);
  line.add("--tokens", chosen.tokens, "tokens of a rank").whole_number(1, 1 << 16);
  line.add("--hidden", batch.hidden, "channels, a multiple of 128").whole_number(128, 1 << 20);
  line.add("--top-k", batch.top_k).whole_number(1, 32);
  line.add("--experts", batch.experts).whole_number(1, 1 << 20);
  line.add("--layout", batch.layout, "how rows lie").one_of(ep_predict::layouts());
  line.add("--codec", batch.codec, "what rows consist of").one_of(ep_predict::codecs());
  line.add("--visit-groups-of", batch.visit_groups_of,
           "ranks visit their own group of so many first, then the others, each from their own "
           "place on")
      .whole_number(1, 65535);
  line.add("--rounds", batch.rounds, "measured rounds").whole_number(1, 1000);
  line.add("--seed", batch.seed, "of the routing").whole_number(0, 1 << 30);
  line.add("--model", chosen.model,
           "fibres: runs the library on all ranks; aggregated: computes sampled ranks")
      .one_of({"fibres", "aggregated"});
  line.add("--samples", chosen.samples,
           "ranks that the aggregated model computes; 0: all up to 2000, then fewer")
      .whole_number(0, 1'000'000);
  line.flag("--check", chosen.check,
            "compare the aggregated model with the fibres, and fail if times differ by over 5 %");
  line.flag("--csv", chosen.csv, "print lines for a table");
  line.flag("--residuals", chosen.residuals,
            "predict the published rows of the file instead of --ranks and the like, and compare");
  return line.parse(argc, argv, [&] {
    if (batch.top_k > batch.experts)
      programs::refuse("--top-k", std::to_string(batch.top_k) + " given, expected at most " +
                                      std::to_string(batch.experts) + ", --experts");
    const bool runs_fibres = chosen.model == "fibres" || chosen.check;
    for (const std::size_t ranks : chosen.ranks)
      if (runs_fibres && ranks > peerbus::moe::max_ranks)
        programs::refuse("--ranks", std::to_string(ranks) + " given, expected at most " +
                                        std::to_string(peerbus::moe::max_ranks) +
                                        " unless --model is aggregated");
    for (const std::size_t ranks : chosen.ranks)
      if (ranks % batch.visit_groups_of != 0)
        programs::refuse("--visit-groups-of", std::to_string(batch.visit_groups_of) +
                                                  " given, expected a divisor of --ranks, " +
                                                  std::to_string(ranks));
    if (batch.hidden % 128 != 0)
      programs::refuse("--hidden",
                       std::to_string(batch.hidden) + " given, expected a multiple of 128");
  });
}

void print_line(const load& batch, const prediction& found, bool csv) {
  const char* const format = csv ? "%zu,%zu,%.2f,%.2f,%.2f,%.2f,%llu,%llu\n"
                                 : "%6zu %7zu %10.1f %10.1f %10.1f %10.1f %12llu %9llu\n";
  std::printf(format, batch.ranks, batch.tokens, found.dispatch.median, found.dispatch.slowest,
              found.combine.median, found.combine.slowest,
              static_cast<unsigned long long>(found.bytes),
              static_cast<unsigned long long>(found.messages));
  std::fflush(stdout);
}

/// Prints the share of signals in a dispatch, which grows with the number of ranks.
void print_flags(const load& batch, const ep_predict::flag_words& flags) {
  std::printf(
      "%6zu %7zu  %zu flag words reach a rank in a dispatch, %.1f kB: it takes %.1f us to "
      "raise and see as many\n",
      batch.ranks, batch.tokens, flags.words, static_cast<double>(flags.bytes) / 1000, flags.us);
}

void predict_all(const options& chosen, const ep_predict::platform_file& given) {
  if (chosen.csv)
    std::puts(
        "ranks,tokens,dispatch_us,dispatch_slowest_us,combine_us,combine_slowest_us,bytes,"
        "messages");
  else
    std::printf(
        "%s, %s rows, layout %s; microseconds, median over ranks and slowest rank; bytes and "
        "messages of a rank\n%6s %7s %10s %10s %10s %10s %12s %9s\n",
        given.platform.name.c_str(), chosen.batch.codec.c_str(), chosen.batch.layout.c_str(),
        "ranks", "tokens", "dispatch", "slowest", "combine", "slowest", "bytes", "messages");
  for (const std::size_t ranks : chosen.ranks)
    for (const std::size_t tokens : chosen.tokens) {
      load batch = chosen.batch;
      batch.ranks = ranks;
      batch.tokens = tokens;
      if (chosen.model == "fibres") {
        print_line(batch, ep_predict::predict(batch, given.own, given.platform), chosen.csv);
        continue;
      }
      print_line(batch,
                 ep_predict::predict_aggregated(batch, given.own, given.platform, chosen.samples),
                 chosen.csv);
      if (!chosen.csv) print_flags(batch, ep_predict::dispatch_flags(batch, given.platform));
    }
}

/// Compares the models for all loads. Returns whether they agree.
bool check_all(const options& chosen, const ep_predict::platform_file& given) {
  ep_predict::model_check check{given.own, given.platform, chosen.samples};
  for (const std::size_t ranks : chosen.ranks)
    for (const std::size_t tokens : chosen.tokens) {
      load batch = chosen.batch;
      batch.ranks = ranks;
      batch.tokens = tokens;
      check.compare(batch);
    }
  return check.agrees();
}

void print_residual(const char* operation, std::size_t ranks,
                    const ep_predict::published_time& published, double found) {
  if (!published.us) return;
  std::printf("%6zu %-9s %10.1f %10.1f %+8.1f %%  %s\n", ranks, operation, *published.us, found,
              (found / *published.us - 1) * 100,
              published.fitted.empty() ? "predicted" : published.fitted.c_str());
  std::fflush(stdout);
}

void compare(const ep_predict::platform_file& given) {
  std::printf("%s; microseconds\n", given.platform.name.c_str());
  for (const std::string& source : given.sources) std::printf("  %s\n", source.c_str());
  std::printf("%6s %-9s %10s %10s %10s  %s\n", "ranks", "operation", "published", "simulated",
              "off by", "values chosen so that it fits");
  for (const ep_predict::published_row& row : given.published) {
    const prediction found = ep_predict::predict(row.batch, given.own, given.platform);
    print_residual("dispatch", row.batch.ranks, row.dispatch, found.dispatch.median);
    print_residual("combine", row.batch.ranks, row.combine, found.combine.median);
  }
}

}  // namespace

int main(int argc, char** argv) {
  options chosen;
  if (const auto status = parse(argc, argv, chosen)) return *status;
  try {
    const auto given = ep_predict::read_platform(chosen.platform);
    if (chosen.check) return check_all(chosen, given) ? 0 : 1;
    if (chosen.residuals)
      compare(given);
    else
      predict_all(chosen, given);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "ep_predict: %s\n", problem.what());
    return 1;
  }
}
