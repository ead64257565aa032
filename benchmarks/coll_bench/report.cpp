// SPDX-License-Identifier: MIT
#include "coll_bench/report.hpp"

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/core/text.hpp>

#include "page/page.hpp"
#include "support/json.hpp"
#include "support/noise.hpp"
#include "support/statistics.hpp"

namespace coll_bench {
namespace {

double median_of(const row& each, series which) { return bench::median(each.of(which)); }

double bandwidth(std::size_t bytes, double us) noexcept {
  return us > 0 ? static_cast<double>(bytes) / us / 1e3 : 0;
}

/// What peerbus is compared with in this row: out of place where there is such a call.
struct comparison {
  series which;  ///< that `time` is the median of
  double time;
  double floor;
  double mpi;

  static comparison of(const row& each, double hop_ns) {
    const bool out = each.of(series::out_of_place).front() > 0;
    const series which = out ? series::out_of_place : series::in_place;
    const bool is_barrier = each.shape.which == operation::barrier;
    return {which, median_of(each, which),
            is_barrier ? 2 * hop_ns / 1e3 : median_of(each, series::floor),
            median_of(each, out ? series::mpi_out_of_place : series::mpi_in_place)};
  }
};

void print_times(const row& each, series time, series wrong, bool is_checked) {
  const double us = median_of(each, time);
  if (us <= 0) {
    std::printf("%10s%9s%9s%8s", "-", "-", "-", "-");
    return;
  }
  const double algorithm = bandwidth(each.bytes, us);
  std::printf("%10.2f%9.3f%9.3f", us, algorithm, algorithm * each.shape.bus_factor());
  if (is_checked)
    std::printf("%8.0f", each.of(wrong).front());
  else
    std::printf("%8s", "N/A");
}

/// Times as nccl-tests give them, with how they spread over the turns.
bench::json times_json(const row& each, series time, series wrong) {
  const auto spread = bench::summarise(each.of(time));
  const double algorithm = bandwidth(each.bytes, spread.p50);
  return {{"time_us", bench::statistics_json(spread)},
          {"algbw", bench::rounded(algorithm)},
          {"busbw", bench::rounded(algorithm * each.shape.bus_factor())},
          {"wrong", each.of(wrong).front()}};
}

/// Returns the signs that other programs disturbed the calls of this row.
std::string noise_of_row(const options& chosen, const row& each, series which) {
  return bench::signs_of_noise(chosen.noise, {{"the time", bench::summarise(each.of(which))}});
}

}  // namespace

std::string noise_of(const options& chosen, const outcome& result) {
  std::vector<std::string> names;
  std::vector<std::pair<std::string_view, bench::statistics>> times;
  names.reserve(result.rows.size());
  times.reserve(2 * result.rows.size());
  for (const row& each : result.rows) {
    names.push_back(peerbus::concat(name_of(each.shape.which), " of ", each.bytes, " bytes"));
    for (const series which : {series::out_of_place, series::in_place})
      times.emplace_back(names.back(), bench::summarise(each.of(which)));
  }
  return bench::signs_of_noise(chosen.noise, times);
}

namespace {

void print(const options& chosen, const bench::machine& where, const outcome& result) {
  std::printf(
      "# coll_bench  %zu ranks over %s, operands in %s; times: median of %zu turns of %zu "
      "calls, slowest rank\n",
      result.rows.empty() ? chosen.ranks : result.rows.front().shape.ranks,
      chosen.transport.c_str(), chosen.in_window ? "a window" : "private memory", chosen.turns,
      chosen.iterations);
  std::printf("# machine  %s, %zu cores, %zu usable; %s; %s; huge pages %s\n", where.cpu.c_str(),
              where.cores, result.cores, where.kernel.c_str(), where.compiler.c_str(),
              where.huge_pages.c_str());
  std::printf("# %.*s\n# floor: %.*s\n", static_cast<int>(bytes_formula.size()),
              bytes_formula.data(), static_cast<int>(floor_formula.size()), floor_formula.data());
  std::printf(
      "# memory of the team: %zu bytes at each rank; a cache line from rank 0 to 1: %.0f "
      "ns\n",
      result.memory_bytes, result.hop_ns);
  if (!result.library.empty())
    std::printf("# mpi: %s, in turns with peerbus; x mpi: its time / that of peerbus\n",
                result.library.c_str());
  if (chosen.compute_us > 0)
    std::printf(
        "# whole us, halves us: one rank computes %.6g us in each call, another in the next; after "
        "the operation or between its halves\n",
        chosen.compute_us);
  std::printf("#\n# %-48s%36s%36s\n", "", "out of place      ", "in place      ");
  std::printf("# %-15s%12s%10s%6s%5s%10s%9s%9s%8s%10s%9s%9s%8s%10s%7s%12s%10s%7s%s\n", "operation",
              "size", "count", "type", "root", "time us", "algbw", "busbw", "#wrong", "time us",
              "algbw", "busbw", "#wrong", "floor us", "ratio", "algorithm", "mpi us", "x mpi",
              chosen.compute_us > 0 ? "  whole us halves us" : "");
  if (!result.noise.empty())
    std::printf("# noise: %s: no figures to compare or to keep\n", result.noise.c_str());
  double sum = 0;
  for (const row& each : result.rows) {
    const std::string type =
        each.shape.reduces() ? chosen.type + "," + chosen.reduction : chosen.type;
    std::printf("%-17.*s%12zu%10zu%9s%3s", static_cast<int>(name_of(each.shape.which).size()),
                name_of(each.shape.which).data(), each.bytes, each.count, type.c_str(),
                each.shape.has_root() ? std::to_string(each.shape.root).c_str() : "-1");
    print_times(each, series::out_of_place, series::wrong_out_of_place, chosen.check);
    print_times(each, series::in_place, series::wrong_in_place, chosen.check);
    const auto compared = comparison::of(each, result.hop_ns);
    if (compared.floor > 0)
      std::printf("%10.2f%7.2f", compared.floor, compared.time / compared.floor);
    else
      std::printf("%10s%7s", "-", "-");
    std::printf("%12s", each.algorithm.c_str());
    if (compared.mpi > 0)
      std::printf("%10.2f%7.2f", compared.mpi, compared.mpi / compared.time);
    else if (chosen.compute_us > 0)
      std::printf("%10s%7s", "-", "-");
    if (const double whole = median_of(each, series::uneven_whole); whole > 0)
      std::printf("%10.2f%10.2f", whole, median_of(each, series::uneven_halves));
    std::printf("\n");
    sum += bandwidth(each.bytes, compared.time) * each.shape.bus_factor();
  }
  if (!result.rows.empty())
    std::printf("# Avg bus bandwidth: %.3f\n", sum / static_cast<double>(result.rows.size()));
  if (chosen.check) std::printf("# Wrong elements: %.0f\n", result.wrong());
}

bench::json result_json(const options& chosen, const bench::machine& where, const outcome& result) {
  bench::json rows = bench::json::array();
  for (const row& each : result.rows) {
    const auto compared = comparison::of(each, result.hop_ns);
    bench::json json{
        {"operation", name_of(each.shape.which)},
        {"size", each.bytes},
        {"count", each.count},
        {"algorithm", each.algorithm},
        {"floor_us", bench::rounded(compared.floor)},
        {"floor_bytes", each.floor_bytes},
        {"ratio_to_floor", bench::rounded(compared.floor > 0 ? compared.time / compared.floor : 0)},
        {"noise", {{"signs", noise_of_row(chosen, each, compared.which)}}}};
    const auto add = [&](const char* name, series time, series wrong) {
      if (each.of(time).front() > 0) json[name] = times_json(each, time, wrong);
    };
    add("out_of_place", series::out_of_place, series::wrong_out_of_place);
    add("in_place", series::in_place, series::wrong_in_place);
    add("mpi_out_of_place", series::mpi_out_of_place, series::wrong_mpi_out_of_place);
    add("mpi_in_place", series::mpi_in_place, series::wrong_mpi_in_place);
    if (each.of(series::uneven_whole).front() > 0)
      json["uneven"] = {
          {"whole_us", bench::statistics_json(bench::summarise(each.of(series::uneven_whole)))},
          {"halves_us", bench::statistics_json(bench::summarise(each.of(series::uneven_halves)))},
          {"wrong", each.of(series::wrong_halves).front()}};
    if (compared.mpi > 0) json["times_mpi"] = bench::rounded(compared.mpi / compared.time);
    rows.push_back(std::move(json));
  }
  bench::json machine = bench::machine_json(where);
  machine["usable_cores"] = result.cores;
  return {{"program", "coll_bench"},
          {"machine", std::move(machine)},
          {"ranks", result.rows.empty() ? chosen.ranks : result.rows.front().shape.ranks},
          {"transport", chosen.transport},
          {"operands", chosen.in_window ? "window" : "memory"},
          {"type", chosen.type},
          {"reduction", chosen.reduction},
          {"root", chosen.root},
          {"iterations", chosen.iterations},
          {"turns", chosen.turns},
          {"compute_us", chosen.compute_us},
          {"mpi", result.library},
          {"hop_ns", bench::rounded(result.hop_ns)},
          {"team_bytes", result.memory_bytes},
          {"costs", chosen.team.costs.text()},
          {"formula", {{"bytes", bytes_formula}, {"floor", floor_formula}}},
          {"noise", bench::noise_json(chosen.noise, result.noise)},
          {"check", bench::check_json(result.wrong() == 0 ? "" : "some elements are wrong",
                                      chosen.check ? "every element of every output, before and "
                                                     "after timing"
                                                   : "nothing")},
          {"rows", std::move(rows)}};
}

}  // namespace

void show(const options& chosen, const bench::machine& where, const outcome& result) {
  print(chosen, where, result);
  if (chosen.json.empty() && chosen.report.empty()) return;
  const bench::json found = result_json(chosen, where, result);
  if (!chosen.json.empty()) bench::write_json(chosen.json, found);
  if (chosen.report.empty()) return;
  bench::json all = bench::report_head(chosen.command);
  all.update(found);
  bench::write_page(chosen.report, all.dump());
  std::printf("# the report is in %s\n", chosen.report.c_str());
}

}  // namespace coll_bench
