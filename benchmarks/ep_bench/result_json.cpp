// SPDX-License-Identifier: MIT
#include "ep_bench/result_json.hpp"

#include <string>

#include "ep_bench/figures.hpp"

namespace ep_bench {

using bench::statistics_json;

namespace {

/// The floor in a few words, as a legend has them.
std::string what_floor_is(const outcome& result, const figures& found) {
  if (result.floor == floor_kind::puts) return "plain puts";
  const std::string copy =
      found.floor_streams() ? "streaming copy, and for combine a plain one" : "plain copy";
  return result.crowded ? copy + ", all ranks' bytes by one rank per core" : copy;
}

}  // namespace

json result_json(const options& chosen, const group& who, const bench::machine& where,
                 const outcome& result) {
  json all;
  all["config"] = config_json(chosen, who, result.iterations());
  all["machine"] = machine_json(where, result.cores);
  if (result.protocol)
    all["protocol"] = {{"chosen", describe(*result.protocol)},
                       {"counts_us", result.protocol_costs.counts_us},
                       {"slots_us", result.protocol_costs.slots_us}};
  all["machine"]["ranks_share_cores"] = result.crowded;
  const auto found = figures::of_run(result);
  for (const char* name : {"dispatch_us", "combine_us", "pair_us"}) all[name] = nullptr;
  all["bytes"] = {{"dispatch", result.dispatch_bytes},
                  {"combine", result.combine_bytes},
                  {"formula", bytes_formula(chosen)}};
  all["floor"] = {
      {"signal_one_way_ns", nullptr}, {"dispatch_us", nullptr}, {"combine_us", nullptr}};
  all["ratio"] = {{"dispatch", nullptr}, {"combine", nullptr}};
  if (result.planes)
    all["planes"] = {
        {"near_ranks", result.planes->near_ranks},
        {"near_bytes", result.planes->near_bytes()},
        {"near_row_bytes", result.planes->rows.near_bytes},
        {"near_output_bytes", result.planes->rows.near_output_bytes},
        {"near_messages", result.planes->near_messages},
        {"far_bytes", result.planes->far_bytes},
        {"far_messages", result.planes->far_messages},
        {"far_row_bytes", result.planes->rows.far_bytes},
        {"relays", result.relay.relays},
        {"expected_far_bytes",
         {{"one_level",
           rounded(static_cast<double>(chosen.tokens) * result.relay.estimate.far_bytes_flat)},
          {"two_levels",
           rounded(static_cast<double>(chosen.tokens) * result.relay.estimate.far_bytes_relay)}}}};
  if (found) {
    all["dispatch_us"] = statistics_json(found->dispatch);
    all["combine_us"] = statistics_json(found->combine);
    all["pair_us"] = statistics_json(found->pair);
    json& floor = all["floor"];
    if (found->signal_one_way_ns) floor["signal_one_way_ns"] = rounded(*found->signal_one_way_ns);
    floor["dispatch_us"] = rounded(found->own_dispatch_floor().p50);
    floor["combine_us"] = rounded(found->plain_combine.p50);
    floor["signal_yields"] = result.shares_floor();
    floor["dispatch_distribution_us"] = statistics_json(found->own_dispatch_floor());
    if (found->streaming_dispatch) {
      floor["plain_copy_us"] = rounded(found->plain_dispatch.p50);
      floor["streaming_copy_us"] = rounded(found->streaming_dispatch->p50);
    }
    floor["combine_distribution_us"] = statistics_json(found->plain_combine);
    if (found->shared_plain_dispatch && found->shared_plain_combine) {
      floor["all_ranks_dispatch_us"] = rounded(found->dispatch_floor().p50);
      floor["all_ranks_combine_us"] = rounded(found->shared_plain_combine->p50);
    }
    all["ratio"] = {{"dispatch", rounded(found->dispatch.p50 / found->dispatch_floor().p50)},
                    {"combine", rounded(found->combine.p50 / found->combine_floor().p50)},
                    {"of", what_floor_is(result, *found)}};
  }
  all["check"] = bench::check_json(result.wrong, what_is_checked);
  return all;
}

}  // namespace ep_bench
