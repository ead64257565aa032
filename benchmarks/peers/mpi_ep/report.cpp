// SPDX-License-Identifier: MIT
#include "peers/mpi_ep/report.hpp"

#include <mpi.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "support/json.hpp"
#include "support/machine.hpp"
#include "support/statistics.hpp"

namespace mpi_ep {
namespace {

std::string library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string all{text.data()};
  return all.substr(0, all.find(','));
}

const char* name_of(rows sent) noexcept { return sent == rows::per_rank ? "rank" : "expert"; }

constexpr const char* what_is_checked =
    "bitwise against a plain reference, before and after timing: every received row with its scale "
    "and its order; every combined element";

void print(const char* name, const std::vector<double>& times) {
  const auto found = bench::summarise(times);
  std::printf("%-9s%10.2f%10.2f%10.2f%10.2f%10.2f\n", name, found.min, found.p50, found.p90,
              found.p99, found.max);
}

void write(const arguments& chosen, std::size_t ranks, const outcome& result) {
  const ep_bench::options& payload = chosen.payload;
  bench::json all;
  all["config"] = {{"transport", library_version()},
                   {"ranks", ranks},
                   {"tokens", payload.tokens},
                   {"hidden", payload.hidden},
                   {"top_k", payload.top_k},
                   {"experts", payload.experts},
                   {"codec", payload.codec},
                   {"rows", name_of(chosen.sent)},
                   {"own_rows", chosen.own_rows_travel ? "travel" : "stay"},
                   {"iters", payload.iterations},
                   {"warmup", payload.warmup},
                   {"seed", payload.seed},
                   {"placement", "placed by the launcher"}};
  all["machine"] = bench::machine_json(bench::machine::here());
  for (const char* name : {"dispatch_us", "combine_us", "pair_us"}) all[name] = nullptr;
  if (!result.dispatch.empty()) {
    all["dispatch_us"] = bench::statistics_json(bench::summarise(result.dispatch));
    all["combine_us"] = bench::statistics_json(bench::summarise(result.combine));
    all["pair_us"] = bench::statistics_json(bench::summarise(result.pair));
  }
  all["bytes"] = {{"dispatch", result.dispatch_bytes}, {"combine", result.combine_bytes}};
  all["check"] = bench::check_json(result.wrong, what_is_checked);
  bench::write_json(payload.json, all);
}

}  // namespace

void report(const arguments& chosen, std::size_t ranks, const outcome& result) {
  const ep_bench::options& payload = chosen.payload;
  std::printf(
      "mpi_ep   %zu ranks over %s; %zu tokens a rank, hidden %zu, top-%zu of %zu experts, %s, one "
      "row per (token, %s), own rows %s, %zu iterations\n",
      ranks, library_version().c_str(), payload.tokens, payload.hidden, payload.top_k,
      payload.experts, payload.codec.c_str(), name_of(chosen.sent),
      chosen.own_rows_travel ? "travel" : "stay", payload.iterations);
  if (!result.dispatch.empty()) {
    std::printf("%-9s%10s%10s%10s%10s%10s\n", "us", "min", "p50", "p90", "p99", "max");
    print("dispatch", result.dispatch);
    print("combine", result.combine);
    print("pair", result.pair);
  }
  std::printf("check    %s%s\n", result.wrong.empty() ? "passed: " : "FAILED: ",
              result.wrong.empty() ? what_is_checked : result.wrong.c_str());
  if (!payload.json.empty()) write(chosen, ranks, result);
}

}  // namespace mpi_ep
