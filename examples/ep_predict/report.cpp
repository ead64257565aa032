// SPDX-License-Identifier: MIT
#include "report.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ep_predict {

namespace {

double statistic_of(const times& found, std::string_view name) {
  if (name == "mean") return found.mean;
  if (name == "min") return found.least;
  if (name == "max") return found.most;
  return found.median;
}

double time_of(const prediction& found, const published_time& published) {
  const double dispatch = statistic_of(found.dispatch, published.statistic);
  const double combine = statistic_of(found.combine, published.statistic);
  if (published.operation == "total") return dispatch + combine;
  return published.operation == "combine" ? combine : dispatch;
}

void print_operation(const char* operation, const load& batch, const times& found,
                     const prediction& of, bool csv) {
  if (csv)
    std::printf("%s,%zu,%zu,%zu,%zu,%zu,%s,%s,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%llu,%llu,%zu\n",
                operation, batch.ranks, batch.tokens, batch.hidden, batch.top_k, batch.experts,
                batch.codec.c_str(), batch.layout.c_str(), found.median, found.mean, found.least,
                found.most, found.p99, found.slowest, static_cast<unsigned long long>(of.bytes),
                static_cast<unsigned long long>(of.messages), of.window_bytes);
  else
    std::printf("%6zu %7zu %-9s %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %12llu %9llu %8.1f\n",
                batch.ranks, batch.tokens, operation, found.median, found.mean, found.least,
                found.most, found.p99, found.slowest, static_cast<unsigned long long>(of.bytes),
                static_cast<unsigned long long>(of.messages),
                static_cast<double>(of.window_bytes) / 1048576);
}

}  // namespace

void print_header(const load& batch, const platform_file& given, const std::string& engine,
                  bool csv) {
  if (csv) {
    std::puts(
        "operation,ranks,tokens,hidden,top_k,experts,dtype,layout,latency_us,mean_us,min_us,max_us,"
        "p99_us,slowest_us,bytes,messages,window_bytes");
    return;
  }
  std::printf(
      "%s, %s rows, layout %s; by %s, microseconds over ranks and rounds, slowest: the median over "
      "rounds "
      "of the slowest rank; bytes and messages that a rank sends in a round; MiB of its window\n",
      given.platform.name.c_str(), batch.codec.c_str(), batch.layout.c_str(), engine.c_str());
  std::printf("%6s %7s %-9s %9s %9s %9s %9s %9s %9s %12s %9s %8s\n", "ranks", "tokens", "operation",
              "median", "mean", "min", "max", "p99", "slowest", "bytes", "messages", "window");
}

void print_row(const load& batch, const prediction& found, bool csv) {
  print_operation("dispatch", batch, found.dispatch, found, csv);
  print_operation("combine", batch, found.combine, found, csv);
  std::fflush(stdout);
}

void print_flags(const load& batch, const flag_words& flags) {
  std::printf(
      "%6zu %7zu  %zu flag words reach a rank in a dispatch, %.1f kB: it takes %.1f us to "
      "raise and see as many\n",
      batch.ranks, batch.tokens, flags.words, static_cast<double>(flags.bytes) / 1000, flags.us);
}

void print_bounds(const std::vector<bound>& bounds) {
  std::printf("  goes without");
  for (const bound& each : bounds)
    std::printf("%s %s", &each == bounds.data() ? "" : ",", each.cost.c_str());
  std::printf(": dispatch");
  for (const bound& each : bounds) std::printf(" %.0f %%", each.dispatch * 100);
  std::printf("; combine");
  for (const bound& each : bounds) std::printf(" %.0f %%", each.combine * 100);
  std::puts("");
  std::fflush(stdout);
}

void print_advice(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) std::printf("  %s\n", line.c_str());
  std::fflush(stdout);
}

void print_residuals(const platform_file& given, const std::string& library,
                     peerbus::simulated_links* links) {
  if (!library.empty() &&
      std::ranges::find(given.published, library, &published_row::library) == given.published.end())
    throw std::runtime_error{"platform '" + given.platform.name + "' has no times of '" + library +
                             "'"};
  std::printf("%s; microseconds\n", given.platform.name.c_str());
  for (const std::string& source : given.sources) std::printf("  %s\n", source.c_str());
  std::printf("%6s %-6s %-9s %-9s %10s %10s %10s  %s\n", "ranks", "codec", "operation", "statistic",
              "published", "simulated", "off by", "chosen with it in sight");
  std::string latest;
  for (const published_row& row : given.published) {
    if (!library.empty() && row.library != library) continue;
    if (row.library != latest) std::printf("%s\n", row.library.c_str());
    latest = row.library;
    const prediction found = predict(row.batch, row.own, given.platform, {}, links);
    for (const published_time& published : row.times) {
      const double simulated = time_of(found, published);
      std::printf("%6zu %-6s %-9s %-9s %10.1f %10.1f %+8.1f %%  %s\n", row.batch.ranks,
                  row.batch.codec.c_str(), published.operation.c_str(), published.statistic.c_str(),
                  published.us, simulated, (simulated / published.us - 1) * 100,
                  published.fitted.empty() ? "predicted" : published.fitted.c_str());
      std::fflush(stdout);
    }
    if (!row.mechanism.empty()) std::printf("         %s\n", row.mechanism.c_str());
  }
}

}  // namespace ep_predict
