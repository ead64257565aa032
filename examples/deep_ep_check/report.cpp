// SPDX-License-Identifier: MIT
#include "report.hpp"

#include <cstdio>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include <peerbus/compat/cann/attention_apart.hpp>
#include <peerbus/core/text.hpp>

namespace deep_ep_check {
namespace {

namespace cann = peerbus::cann;
namespace deep_ep = peerbus::deep_ep;
using json = nlohmann::ordered_json;
using peerbus::concat;

std::string mib(std::size_t bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1f MiB (%zu bytes)",
                static_cast<double>(bytes) / static_cast<double>(deep_ep::hccl_mb), bytes);
  return text;
}

std::string platform_text(const verdict& v) {
  std::string text = concat(to_string(v.platform), v.fits ? ": fits\n" : ": does not fit\n");
  for (const auto& [what, found] : v.findings)
    text += concat(deep_ep::refuses(found) ? "  no    " : "  note  ", what, ": ", describe(found),
                   "\n");
  for (const deep_ep::variable& each : v.variables)
    text += each.set ? concat("  set   ", each.name, "=", each.value, "  (", each.why, ")\n")
                     : concat("  unset ", each.name, "  (", each.why, ")\n");
  return text;
}

std::string memory_text(const options& chosen, const memory& needed) {
  std::string text = "memory per rank\n";
  if (needed.deep_ep)
    text += concat("  DeepEP, ", needed.deep_ep_function, ": ", mib(*needed.deep_ep), "\n");
  for (const hccl_window& window : needed.hccl)
    text += concat("  HCCL, rule ", to_string(window.rule), ": ", mib(window.bytes),
                   ", HCCL_BUFFSIZE=", deep_ep::hccl_buffsize_mb(window.bytes), "\n");
  if (chosen.mode == call_mode::normal)
    text += "  HCCL: no rule is published for the normal mode\n";
  text += concat("  peerbus, ", needed.peerbus.in_flight,
                 " batches in flight: ", mib(needed.peerbus.total), "\n");
  for (const auto& part : needed.peerbus.components())
    text += concat("    ", part.name, ": ", mib(part.bytes), "\n");
  if (chosen.mode == call_mode::low_latency)
    text += concat("  peerbus, arrays beside that: ", mib(needed.arrays), "\n");
  return text;
}

/// Returns the `batchSize` of each rank whose `batchSize` is not that of the rank before.
std::vector<std::pair<std::size_t, std::size_t>> batch_sizes(cann::apart_call c,
                                                             cann::apart_operation what) {
  std::vector<std::pair<std::size_t, std::size_t>> sizes;
  c.what = what;
  for (c.rank = 0; c.rank < c.expert_rank_size + c.attention_rank_size; ++c.rank)
    if (const std::size_t size = batch_size_of(c); sizes.empty() || sizes.back().second != size)
      sizes.emplace_back(c.rank, size);
  return sizes;
}

std::string batch_sizes_text(const cann::apart_call& c) {
  std::string text = "batchSize\n";
  for (const auto what : cann::apart_operations) {
    text += concat("  ", to_string(what), ":");
    for (const auto& [rank, size] : batch_sizes(c, what))
      text += concat(rank == 0 ? " " : ", ", size, " from rank ", rank, " on");
    text += "\n";
  }
  return text;
}

json batch_sizes_json(const cann::apart_call& c) {
  json result = json::object();
  for (const auto what : cann::apart_operations) {
    json& sizes = result[std::string{to_string(what)}] = json::array();
    for (const auto& [rank, size] : batch_sizes(c, what))
      sizes.push_back({{"from_rank", rank}, {"batch_size", size}});
  }
  return result;
}

json a2e_json(const cann::apart_call& c) {
  return {{"mode", to_string(call_mode::a2e)},
          {"ranks", c.expert_rank_size + c.attention_rank_size},
          {"expert_ranks", c.expert_rank_size},
          {"tokens", c.tokens},
          {"hidden", c.hidden_size},
          {"top_k", c.topk},
          {"dtype", to_string(c.dtype)},
          {"compute_gate", c.compute_gate},
          {"aiv_num", c.aiv_num},
          {"hccl_buffsize", c.hccl_buffsize_mb}};
}

json call_json(const options& chosen) {
  if (chosen.mode == call_mode::a2e) return a2e_json(chosen.apart);
  const deep_ep::call& c = chosen.call;
  json result{{"mode", to_string(chosen.mode)},
              {"ranks", c.ranks},
              {"ranks_per_node", c.ranks_per_node},
              {"tokens", c.tokens},
              {"hidden", c.hidden},
              {"top_k", c.top_k},
              {"experts", c.experts},
              {"dtype", to_string(c.dtype)},
              {"dropped", c.dropped},
              {"narrow_topk_idx", c.narrow_topk_idx},
              {"gaps_in_x", c.gaps_in_x},
              {"async_finish", c.async_finish},
              {"in_flight", chosen.in_flight}};
  if (chosen.mode == call_mode::low_latency)
    result.update({{"max_tokens", c.max_tokens},
                   {"use_fp8", c.use_fp8},
                   {"round_scale", c.round_scale},
                   {"use_ue8m0", c.use_ue8m0},
                   {"topk_weights", c.weights_given},
                   {"use_logfmt", c.use_logfmt},
                   {"return_recv_hook", c.return_recv_hook},
                   {"zero_copy", c.zero_copy},
                   {"out", c.out_given},
                   {"statistics", c.cumulative_statistics_given},
                   {"wait_statistics", c.wait_statistics_given},
                   {"comm_alg", to_string(c.algorithm)}});
  else if (chosen.mode == call_mode::ep)
    result.update({{"max_tokens", c.max_tokens},
                   {"do_expand", c.do_expand},
                   {"do_handle_copy", c.do_handle_copy},
                   {"allow_multiple_reduction", c.allow_multiple_reduction},
                   {"sl_idx", c.sl_idx_given},
                   {"num_sms", c.num_sms},
                   {"num_qps", c.num_qps}});
  else
    result.update({{"config", c.config_given},
                   {"num_worst_tokens", c.num_worst_tokens},
                   {"num_nvl_bytes", c.num_nvl_bytes ? json(*c.num_nvl_bytes) : json()}});
  if (chosen.mode != call_mode::ep)
    result.update({{"no_low_latency_mode", c.no_low_latency_mode},
                   {"num_rdma_bytes", c.num_rdma_bytes ? json(*c.num_rdma_bytes) : json()}});
  if (chosen.mode != call_mode::low_latency)
    result.update({{"cached_handle", c.cached_handle},
                   {"bias", c.bias_given},
                   {"previous_event", c.previous_event_given},
                   {"allocate_on_comm_stream", c.allocate_on_comm_stream},
                   {"expert_alignment", c.expert_alignment}});
  result["hccl_buffsize"] = c.environment.hccl_buffsize_mb;
  result["qp_depth"] = c.environment.nvshmem_qp_depth;
  return result;
}

json finding_json(const operation_finding& each) {
  const deep_ep::finding& f = each.found;
  json result{{"operation", each.what}, {"kind", to_string(f.kind)}, {"what", f.what}};
  if (deep_ep::refuses(f)) {
    if (f.given_text.empty())
      result["given"] = f.given;
    else
      result["given"] = f.given_text;
    result["expected"] = concat(f.expected);
  }
  result["advice"] = advice_of(f);
  return result;
}

json platform_json(const verdict& v) {
  json findings = json::array();
  for (const operation_finding& each : v.findings) findings.push_back(finding_json(each));
  json set = json::object();
  json unset = json::array();
  for (const deep_ep::variable& each : v.variables) {
    if (each.set)
      set[std::string{each.name}] = each.value;
    else
      unset.push_back(each.name);
  }
  return {{"profile", to_string(v.platform)},
          {"fits", v.fits},
          {"findings", findings},
          {"set", set},
          {"unset", unset}};
}

json memory_json(const memory& needed) {
  json result{{"deep_ep", {{"function", needed.deep_ep_function}, {"bytes", nullptr}}},
              {"hccl", json::object()}};
  if (needed.deep_ep) result["deep_ep"]["bytes"] = *needed.deep_ep;
  for (const hccl_window& window : needed.hccl)
    result["hccl"][std::string{to_string(window.rule)}] = {
        {"bytes", window.bytes}, {"buffsize_mb", deep_ep::hccl_buffsize_mb(window.bytes)}};
  json parts = json::object();
  for (const auto& part : needed.peerbus.components()) parts[std::string{part.name}] = part.bytes;
  result["peerbus"] = {{"bytes", needed.peerbus.total},
                       {"in_flight", needed.peerbus.in_flight},
                       {"components", parts},
                       {"arrays", needed.arrays}};
  return result;
}

}  // namespace

std::string report_text(const options& chosen, const std::vector<verdict>& verdicts,
                        const std::optional<memory>& needed) {
  const deep_ep::call& c = chosen.call;
  const bool is_a2e = chosen.mode == call_mode::a2e;
  std::string text = concat(to_string(chosen.mode), ": ", c.ranks, " ranks, ");
  if (is_a2e) text += concat(chosen.apart.expert_rank_size, " of them with experts, ");
  text += concat(c.tokens, " tokens");
  if (c.max_tokens != 0) text += concat(" of at most ", c.max_tokens);
  text += concat(", hidden ", c.hidden, ", top_k ", c.top_k, ", ");
  if (!is_a2e) text += concat(c.experts, " experts, ");
  text += concat(to_string(c.dtype), "\n\n");
  for (const verdict& each : verdicts) text += platform_text(each) + "\n";
  if (is_a2e) return text + batch_sizes_text(chosen.apart);
  return text + (needed ? memory_text(chosen, *needed)
                        : "memory: not said, as nothing runs this configuration\n");
}

std::string report_json(const options& chosen, const std::vector<verdict>& verdicts,
                        const std::optional<memory>& needed) {
  json profiles = json::array();
  for (const verdict& each : verdicts) profiles.push_back(platform_json(each));
  json result{{"arguments", chosen.arguments},
              {"call", call_json(chosen)},
              {"profiles", profiles},
              {"memory", needed ? memory_json(*needed) : json(nullptr)}};
  if (chosen.mode == call_mode::a2e) result["batch_sizes"] = batch_sizes_json(chosen.apart);
  return result.dump(2) + "\n";
}

}  // namespace deep_ep_check
