// SPDX-License-Identifier: MIT
#include <cmath>
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include <peerbus/core/error.hpp>
#include <peerbus/version.hpp>

#include "ep_bench/figures.hpp"
#include "ep_bench/report.hpp"

namespace ep_bench {
namespace {

using json = nlohmann::ordered_json;

/// More digits than three would only pretend.
double rounded(double value) { return std::round(value * 1000) / 1000; }

json as_json(const bench::statistics& time) {
  return {{"min", rounded(time.min)},
          {"p50", rounded(time.p50)},
          {"p90", rounded(time.p90)},
          {"p99", rounded(time.p99)},
          {"max", rounded(time.max)}};
}

json config(const options& chosen, const group& who) {
  return {
      {"transport", chosen.transport}, {"ranks", who.ranks},        {"tokens", chosen.tokens},
      {"hidden", chosen.hidden},       {"top_k", chosen.top_k},     {"experts", chosen.experts},
      {"codec", chosen.codec},         {"routing", chosen.routing}, {"iters", chosen.iterations},
      {"warmup", chosen.warmup},       {"seed", chosen.seed},       {"placement", who.placement}};
}

json describe(const machine& where, const outcome& result) {
  return {{"cpu", where.cpu},
          {"cores", where.cores},
          {"usable_cores", result.cores},
          {"ranks_share_cores", result.crowded},
          {"kernel", where.kernel},
          {"compiler", where.compiler},
          {"huge_pages", where.huge_pages},
          {"kernel_set", where.kernel_set}};
}

}  // namespace

void write_json(const options& chosen, const group& who, const machine& where,
                const outcome& result) {
  json all;
  all["config"] = config(chosen, who);
  all["machine"] = describe(where, result);
  const auto found = figures::of_run(result);
  // Null, not absent, where nothing could be measured, so that readers need no special case.
  for (const char* name : {"dispatch_us", "combine_us", "pair_us"}) all[name] = nullptr;
  all["bytes"] = {{"dispatch", result.dispatch_bytes},
                  {"combine", result.combine_bytes},
                  {"formula", bytes_formula}};
  all["floor"] = {
      {"signal_one_way_ns", nullptr}, {"dispatch_us", nullptr}, {"combine_us", nullptr}};
  all["ratio"] = {{"dispatch", nullptr}, {"combine", nullptr}};
  if (found) {
    all["dispatch_us"] = as_json(found->dispatch);
    all["combine_us"] = as_json(found->combine);
    all["pair_us"] = as_json(found->pair);
    json& floor = all["floor"];
    if (found->signal_one_way_ns) floor["signal_one_way_ns"] = rounded(*found->signal_one_way_ns);
    floor["dispatch_us"] = rounded(found->plain_dispatch.p50);
    floor["combine_us"] = rounded(found->plain_combine.p50);
    floor["signal_yields"] = result.crowded;
    floor["dispatch_distribution_us"] = as_json(found->plain_dispatch);
    floor["combine_distribution_us"] = as_json(found->plain_combine);
    all["ratio"] = {{"dispatch", rounded(found->dispatch.p50 / found->plain_dispatch.p50)},
                    {"combine", rounded(found->combine.p50 / found->plain_combine.p50)}};
  }
  all["check"] = {{"passed", result.wrong.empty()},
                  {"what", result.wrong.empty() ? std::string{what_is_checked} : result.wrong}};

  std::ofstream file{chosen.json};
  file << all.dump(2) << '\n';
  file.close();
  if (!file)
    throw peerbus::error{peerbus::errc::system, "the results cannot be written to " + chosen.json};
}

}  // namespace ep_bench
