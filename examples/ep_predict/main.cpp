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

#include "examples/support/command_line.hpp"
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
  bool csv = false;
  bool residuals = false;
};

std::optional<int> parse(int argc, char** argv, options& chosen) {
  programs::command_line line{"ep_predict",
                              "Predicts the latency of dispatch and combine by a simulation."};
  load& batch = chosen.batch;
  line.add("platform", chosen.platform, "file that describes the machine").required();
  line.add("--ranks", chosen.ranks, "numbers of ranks").whole_number(1, 65535);
  line.add("--tokens", chosen.tokens, "tokens of a rank").whole_number(1, 1 << 16);
  line.add("--hidden", batch.hidden, "channels, a multiple of 16, or of 128 with fp8 codecs")
      .whole_number(16, 1 << 20);
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
  line.flag("--csv", chosen.csv, "print lines for a table");
  line.flag("--residuals", chosen.residuals,
            "predict the published rows of the file instead of --ranks and the like, and compare");
  return line.parse(argc, argv, [&] {
    for (const std::size_t ranks : chosen.ranks)
      if (ranks % batch.visit_groups_of != 0)
        programs::refuse("--visit-groups-of", std::to_string(batch.visit_groups_of) +
                                                  " given, expected a divisor of --ranks, " +
                                                  std::to_string(ranks));
    const std::string complaint = ep_predict::complaint_about(batch);
    if (!complaint.empty()) programs::refuse("batch", complaint);
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
      print_line(batch, ep_predict::predict(batch, given.own, given.platform), chosen.csv);
    }
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
    if (chosen.residuals)
      compare(given);
    else
      predict_all(chosen, given);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "ep_predict: %s\n", problem.what());
    return 1;
  }
}
