// SPDX-License-Identifier: MIT
//
// The arithmetic of benchmarks/compare.sh and of verbs/compare.sh, which run the programs and leave
// their results in files. Not meant to be called by hand.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/core/error.hpp>

#include "examples/support/command_line.hpp"
#include "support/json.hpp"
#include "support/statistics.hpp"

namespace {

using bench::json;

/// One line of the table: where the figures of both sides are in their files, as JSON pointers.
struct line {
  std::string title;
  std::string files;  ///< <files>.ours.<round> and <files>.theirs.<round>
  std::string ours;
  std::string theirs;
  std::string note;  ///< how theirs was run
};

struct figures {
  std::vector<double> ours;
  std::vector<double> theirs;
  std::vector<double> ratios;
  std::size_t noisy = 0;  ///< rounds of which a side says that the machine was not quiet
};

json read(const std::filesystem::path& path) {
  std::ifstream file{path};
  return json::parse(file, nullptr, false);
}

/// Tab-separated, one line of the table each, in the file `lines` of the folder.
std::vector<line> read_lines(const std::filesystem::path& folder) {
  std::ifstream file{folder / "lines"};
  std::vector<line> lines;
  for (std::string text; std::getline(file, text);) {
    std::vector<std::string> fields(1);
    for (const char c : text)
      if (c == '\t')
        fields.emplace_back();
      else
        fields.back() += c;
    if (fields.size() != 5)
      throw peerbus::error{
          peerbus::errc::invalid_argument,
          "a line of " + std::to_string(fields.size()) + " fields given, expected 5: " + text};
    lines.push_back({fields[0], fields[1], fields[2], fields[3], fields[4]});
  }
  return lines;
}

/// A round counts only if both sides have a figure that their own checks found right.
figures figures_of(const std::filesystem::path& folder, const line& which) {
  bool is_noisy = false;
  const auto one = [&](const std::string& side, std::size_t round, const std::string& where) {
    const auto all = read(folder / (which.files + "." + side + "." + std::to_string(round)));
    if (all.is_object() && !all.value(json::json_pointer{"/noise/signs"}, std::string{}).empty())
      is_noisy = true;
    const json::json_pointer at{where};
    if (all.is_discarded() || !all.contains(at) || !all[at].is_number()) return 0.0;
    const json::json_pointer passed{"/check/passed"};
    return all.value(passed, true) ? all[at].get<double>() : 0.0;
  };
  figures found;
  for (std::size_t round = 0;
       std::filesystem::exists(folder / (which.files + ".ours." + std::to_string(round)));
       ++round) {
    is_noisy = false;
    const double ours = one("ours", round, which.ours);
    const double theirs = one("theirs", round, which.theirs);
    if (ours <= 0 || theirs <= 0) continue;
    found.ours.push_back(ours);
    found.theirs.push_back(theirs);
    found.ratios.push_back(theirs / ours);
    found.noisy += is_noisy ? 1 : 0;
  }
  return found;
}

int table(const std::filesystem::path& folder, const std::string& output) {
  json all = json::array();
  std::printf("%-64s%12s%12s%8s   %-18s%s\n", "", "ours", "theirs", "ratio", "spread",
              "rounds, theirs by");
  bool complete = true;
  bool is_noisy = false;
  for (const line& each : read_lines(folder)) {
    const figures found = figures_of(folder, each);
    if (found.ratios.empty()) {
      complete = false;
      std::printf("%-64s%12s%12s%8s   no round in which both passed their checks\n",
                  each.title.c_str(), "-", "-", "-");
      continue;
    }
    const double ours = bench::median(found.ours);
    const double theirs = bench::median(found.theirs);
    const double ratio = bench::median(found.ratios);
    const auto [least, most] = std::ranges::minmax(found.ratios);
    char spread[64];
    std::snprintf(spread, sizeof spread, "%.2f .. %.2f", least, most);
    const std::string noisy =
        found.noisy == 0 ? "" : " (" + std::to_string(found.noisy) + " noisy)";
    is_noisy = is_noisy || found.noisy != 0;
    std::printf("%-64s%12.2f%12.2f%8.2f   %-18s%zu%s, %s\n", each.title.c_str(), ours, theirs,
                ratio, spread, found.ratios.size(), noisy.c_str(), each.note.c_str());
    all.push_back({{"what", each.title},
                   {"ours", ours},
                   {"theirs", theirs},
                   {"ratio", {{"median", ratio}, {"min", least}, {"max", most}}},
                   {"rounds", found.ratios},
                   {"noisy_rounds", found.noisy},
                   {"theirs_by", each.note}});
  }
  if (is_noisy)
    std::puts(
        "noisy: other programs ran, or a p90 was over twice its p50: no figures to compare or to "
        "keep");
  if (!output.empty()) bench::write_json(output, all);
  return complete ? 0 : 1;
}

/// Prints the name of the file with the smallest pair of operations; of those that passed.
int best(const std::vector<std::string>& files) {
  double least = std::numeric_limits<double>::infinity();
  std::string which;
  for (const std::string& file : files) {
    const auto all = read(file);
    const json::json_pointer at{"/pair_us/p50"};
    if (all.is_discarded() || !all.contains(at) || !all[at].is_number()) continue;
    if (!all.value(json::json_pointer{"/check/passed"}, false)) continue;
    if (all[at].get<double>() >= least) continue;
    least = all[at].get<double>();
    which = file;
  }
  std::printf("%s\n", which.c_str());
  return which.empty() ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string what;
  std::vector<std::string> paths;
  std::string output;
  programs::command_line line{"compare_peers", "The arithmetic of benchmarks/compare.sh."};
  line.add("what", what, "a table of ratios, or the fastest").one_of({"table", "best"}).required();
  line.add("paths", paths, "the folder of the results, or their files").required();
  line.add("--json", output, "file for the table");
  const auto check = [&] {
    if (what == "table" && (paths.size() != 1 || !std::filesystem::is_directory(paths.front())))
      programs::refuse("table", "'" + paths.front() + "' given, expected a folder");
  };
  if (const auto status = line.parse(argc, argv, check)) return *status;
  try {
    return what == "table" ? table(paths.front(), output) : best(paths);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "compare_peers: %s\n", problem.what());
    return 1;
  }
}
