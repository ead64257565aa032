// SPDX-License-Identifier: MIT
#include "ep_bench/report/write_report.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/core/cores.hpp>
#include <peerbus/core/system_error.hpp>

#include "ep_bench/launch.hpp"
#include "ep_bench/report/memory.hpp"
#include "ep_bench/report/peers.hpp"
#include "ep_bench/result_json.hpp"
#include "page/page.hpp"
#include "support/clock.hpp"
#include "support/machine.hpp"

namespace ep_bench {
namespace {

/// A file without a name, for text that a rank hands to the process that started it.
class shared_text {
 public:
  shared_text() : file_{std::tmpfile(), &std::fclose} {
    if (!file_) throw peerbus::system_failure("creating a temporary file", errno);
  }
  void write(const std::string& text) const {
    std::fwrite(text.data(), 1, text.size(), file_.get());
    std::fflush(file_.get());
  }
  [[nodiscard]] std::string read() const {
    std::string text;
    if (std::fseek(file_.get(), 0, SEEK_SET) != 0) return text;
    char part[4096];
    while (const std::size_t bytes = std::fread(part, 1, sizeof part, file_.get()))
      text.append(part, bytes);
    return text;
  }

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

std::string in_gibibytes(std::size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GiB",
                static_cast<double>(bytes) / static_cast<double>(std::size_t{1} << 30U));
  return text;
}

json not_measured(const options& chosen, const std::string& reason, bool failed) {
  return {{"config", {{"ranks", chosen.ranks}, {"tokens", chosen.tokens}}},
          {"left_out", reason},
          {"failed", failed}};
}

/// Returns: the results of one configuration, or why there are none.
json measure_point(const options& chosen) {
  const std::size_t need = estimated_bytes(chosen);
  // Not all, as the machine needs some for itself and the estimate is rough.
  const std::size_t have = available_bytes() / 10 * 7;
  if (need > have)
    return not_measured(chosen,
                        "needs about " + in_gibibytes(need) + " of memory, of which " +
                            in_gibibytes(have) + " may be taken",
                        false);
  const shared_text delivered;
  const int status =
      start_group(chosen, [&](const options& given, const group& who, const outcome& measured) {
        delivered.write(result_json(given, who, bench::machine::here(), measured).dump());
      });
  json found = json::parse(delivered.read(), nullptr, false);
  if (status == 0 && !found.is_discarded()) return found;
  return not_measured(chosen,
                      !found.is_discarded() && found["check"]["passed"] == false
                          ? "check failed: " + found["check"]["what"].get<std::string>()
                          : "the group ended with status " + std::to_string(status),
                      true);
}

void show_progress(std::size_t done, std::size_t all, const options& next) {
  if (::isatty(STDERR_FILENO) != 1) return;
  if (done == all)
    std::fputs("\r\033[K", stderr);
  else
    std::fprintf(stderr, "\r\033[Kmeasuring %zu of %zu: %zu ranks, %zu tokens", done + 1, all,
                 next.ranks, next.tokens);
}

json sweep(const options& chosen) {
  std::vector<options> wanted;
  const auto want = [&](std::size_t ranks, std::size_t tokens) {
    options one = chosen;
    one.ranks = ranks;
    one.set_tokens(tokens);
    const auto same = [&](const options& other) {
      return other.ranks == ranks && other.tokens == tokens;
    };
    if (std::none_of(wanted.begin(), wanted.end(), same)) wanted.push_back(one);
  };
  for (const std::size_t tokens : chosen.report_tokens) want(chosen.ranks, tokens);
  for (const std::size_t ranks : chosen.report_ranks) want(ranks, chosen.tokens);

  json results = json::array();
  const auto start = bench::clock::now();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    show_progress(i, wanted.size(), wanted[i]);
    // What small configurations do not use up is there for the large ones. Half is for checking.
    const double spent = bench::microseconds(bench::clock::now() - start) / 1e6;
    const double share =
        (chosen.report_seconds - spent) / static_cast<double>(wanted.size() - i) / 2;
    wanted[i].seconds = std::max(share, 0.2);
    results.push_back(measure_point(wanted[i]));
  }
  show_progress(wanted.size(), wanted.size(), chosen);
  return results;
}

}  // namespace

int write_report(const options& chosen, const std::vector<std::string>& command) {
  // First, so that a bad file is not found after minutes.
  json peers = read_peers(chosen);
  json all = bench::report_head(command);
  all["config"] = config_json(chosen, {chosen.ranks, ""}, chosen.iterations);
  all["sweep"] = {{"tokens", chosen.report_tokens}, {"ranks", chosen.report_ranks}};
  all["machine"] = machine_json(bench::machine::here(), peerbus::usable_cores());
  all["results"] = sweep(chosen);
  all["peers"] = std::move(peers);
  const bool failed = std::any_of(all["results"].begin(), all["results"].end(),
                                  [](const json& point) { return point.value("failed", false); });
  if (!chosen.json.empty()) bench::write_json(chosen.json, all);
  bench::write_page(chosen.report, all.dump());
  std::printf("ep_bench  the report is in %s%s\n", chosen.report.c_str(),
              failed ? "; some configurations FAILED" : "");
  return failed ? 1 : 0;
}

}  // namespace ep_bench
