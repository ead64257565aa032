// SPDX-License-Identifier: MIT
#include "ep_bench/result_json.hpp"

#include <cstddef>
#include <string>
#include <utility>

#include <peerbus/moe/choices.hpp>
#include <peerbus/moe/stores.hpp>

#include "ep_bench/figures.hpp"

namespace ep_bench {

using bench::statistics_json;

namespace moe = peerbus::moe;

namespace {

/// A limit with its parts.
json limit_json(const limit& least) {
  return {{"us", rounded(least.total())},
          {"copy_us", rounded(least.copy)},
          {"encode_us", rounded(least.encode)},
          {"signals_us", rounded(least.signals)},
          {"stores", least.streams ? "streaming" : "plain"}};
}

/// What an operation takes of a core.
json core_json(const core_use& taken) {
  return {{"cpu_us", rounded(taken.cpu_us)},
          {"sleeps", rounded(taken.sleeps)},
          {"yields", rounded(taken.yields)}};
}

/// The slowest rank by its median, beside the median of all ranks, and the median of each.
json slowest_rank_json(const outcome& result) {
  json all;
  for (const auto& [name, which] : operation_series) {
    const bench::slowest_rank found = result.slowest_in(which);
    json medians = json::array();
    for (const double median : result.rank_medians[static_cast<std::size_t>(which)])
      medians.push_back(rounded(median));
    all[name] = {{"rank", found.rank},
                 {"p50_us", rounded(found.median)},
                 {"p50_us_of_all", rounded(found.median_of_all)},
                 {"p50_us_by_rank", std::move(medians)}};
  }
  return all;
}

/// The run by iteration: the slowest rank's time and balancedness in each, and plans.
json over_steps_json(const outcome& result) {
  json all{{"sum_us", json::array()}, {"balancedness", json::array()}, {"plans", json::array()}};
  for (const double time : result.of(series::sum)) all["sum_us"].push_back(rounded(time));
  for (const double value : result.balancedness) all["balancedness"].push_back(rounded(value));
  for (const replan& each : result.replans)
    all["plans"].push_back({{"step", each.step},
                            {"moves", each.moves},
                            {"before", rounded(each.before)},
                            {"after", rounded(each.after)}});
  return all;
}

}  // namespace

json result_json(const options& chosen, const group& who, const bench::machine& where,
                 const outcome& result) {
  json all;
  all["config"] = config_json(chosen, who, result.iterations());
  all["machine"] = machine_json(where, result.cores);
  if (const auto& made = result.choices.protocol; made.why != moe::protocol_reason::layout)
    all["protocol"] = {{"chosen", describe(made.chosen)},
                       {"why", describe(made.why)},
                       {"counts_us", made.estimate.counts_us},
                       {"slots_us", made.estimate.slots_us}};
  all["machine"]["ranks_share_cores"] = result.crowded;
  const auto found = figures::of_run(result);
  for (const char* name :
       {"dispatch_us", "read_us", "experts_us", "combine_us", "sum_us", "slowest_rank"})
    all[name] = nullptr;
  all["bytes"] = {{"dispatch", result.dispatch_bytes},
                  {"combine", result.combine_bytes},
                  {"formula", bytes_formula(chosen)}};
  all["limit"] = {{"signal_one_way_ns", nullptr},
                  {"dispatch", nullptr},
                  {"combine", nullptr},
                  {"sum_us", nullptr}};
  all["ratio"] = {{"dispatch", nullptr}, {"combine", nullptr}, {"sum", nullptr}};
  if (result.planes)
    all["planes"] = {{"near_ranks", result.planes->near_ranks},
                     {"near_bytes", result.planes->near_bytes()},
                     {"near_row_bytes", result.planes->rows.near_bytes},
                     {"near_output_bytes", result.planes->rows.near_output_bytes},
                     {"near_messages", result.planes->near_messages},
                     {"far_bytes", result.planes->far_bytes},
                     {"far_messages", result.planes->far_messages},
                     {"far_row_bytes", result.planes->rows.far_bytes},
                     {"relays", result.choices.relay.relays},
                     {"expected_far_bytes",
                      {{"one_level", rounded(static_cast<double>(chosen.tokens) *
                                             result.choices.relay.estimate.far_bytes_flat)},
                       {"two_levels", rounded(static_cast<double>(chosen.tokens) *
                                              result.choices.relay.estimate.far_bytes_relay)}}}};
  if (found) {
    all["dispatch_us"] = statistics_json(found->dispatch);
    all["combine_us"] = statistics_json(found->combine);
    all["sum_us"] = statistics_json(found->sum);
    if (found->read) all["read_us"] = statistics_json(*found->read);
    if (found->experts) all["experts_us"] = statistics_json(*found->experts);
    all["slowest_rank"] = slowest_rank_json(result);
    json& least = all["limit"];
    if (found->signal_one_way_ns) least["signal_one_way_ns"] = rounded(*found->signal_one_way_ns);
    least["dispatch"] = limit_json(found->dispatch_limit);
    least["combine"] = limit_json(found->combine_limit);
    least["sum_us"] = rounded(found->sum_limit);
    least["own_copy_us"] = rounded(found->own_copy);
    least["plain_copy_us"] = rounded(found->plain_dispatch.p50);
    if (found->streaming_dispatch)
      least["streaming_copy_us"] = rounded(found->streaming_dispatch->p50);
    all["ratio"] = {
        {"dispatch", rounded(found->dispatch.p50 / found->dispatch_limit.total())},
        {"combine", rounded(found->combine.p50 / found->combine_limit.total())},
        {"sum", rounded(found->sum.p50 / found->sum_limit)},
        {"of", words_for_copies(result, found->dispatch_limit.streams) + ", encoding, signals"}};
  }
  all["load"] = {{"most_rows", result.load.most_rows},
                 {"mean_rows", rounded(result.load.mean_rows)},
                 {"balancedness", rounded(result.load.balancedness())}};
  if (chosen.balance_given && found) all["over_steps"] = over_steps_json(result);
  all["stores"] = {{"chosen", describe(result.stores.kind)},
                   {"why", describe(result.stores.why)},
                   {"plain_us", rounded(result.stores.plain_us)},
                   {"streaming_us", rounded(result.stores.streaming_us)},
                   {"trials", result.stores.trials}};
  if (result.crowded)
    all["core_use"] = {{"dispatch", core_json(result.dispatch_core)},
                       {"combine", core_json(result.combine_core)}};
  all["noise"] = bench::noise_json(chosen.noise, result.noise);
  all["check"] = bench::check_json(result.wrong, what_is_checked);
  return all;
}

}  // namespace ep_bench
