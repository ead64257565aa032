// SPDX-License-Identifier: MIT
#include "verdict.hpp"

#include <algorithm>
#include <array>
#include <string>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/compat/cann/attention_apart.hpp>
#include <peerbus/compat/deep_ep/size_hint.hpp>
#include <peerbus/moe/layout.hpp>

namespace deep_ep_check {
namespace {

namespace deep_ep = peerbus::deep_ep;
namespace moe = peerbus::moe;
namespace cann = peerbus::cann;

std::array<deep_ep::call, 2> calls_of(const options& chosen) {
  using deep_ep::operation;
  deep_ep::call dispatch = chosen.call;
  deep_ep::call combine = dispatch;
  switch (chosen.mode) {
    case call_mode::low_latency:
      dispatch.what = operation::low_latency_dispatch;
      combine.what = operation::low_latency_combine;
      break;
    case call_mode::normal:
      dispatch.what = operation::normal_dispatch;
      combine.what = operation::normal_combine;
      break;
    case call_mode::ep:
      dispatch.what = operation::ep_dispatch;
      combine.what = operation::ep_combine;
      break;
    case call_mode::a2e: break;  // `judge_a2e`
  }
  dispatch.gaps_in_x = false;                   // peerbus would refuse them too.
  combine.dtype = deep_ep::element_type::bf16;  // Experts return bf16 for any type of dispatch.
  return {dispatch, combine};
}

/// Returns the memory of the calls that are not low-latency: one row per (token, rank), or with
/// do_expand per (token, expert), and scales beside it for fp8.
moe::memory_map map_of_calls(const options& chosen) {
  const deep_ep::call& c = chosen.call;
  const bool by_rank = c.top_k == 0;  // The ranks of a token are then its slots.
  moe::exchange_config wanted{.experts = by_rank ? c.ranks : c.experts,
                              .hidden = c.hidden,
                              .top_k = by_rank ? std::min(c.ranks, moe::max_top_k) : c.top_k,
                              .max_tokens = std::max<std::size_t>({c.tokens, c.max_tokens, 1}),
                              .in_flight = chosen.in_flight,
                              .outputs = moe::outputs_at::home};
  const bool fp8 = c.dtype == deep_ep::element_type::fp8_e4m3;
  if (fp8) wanted.attachments[0] = (c.hidden + 127) / 128 * sizeof(float);
  const moe::row_format row{fp8 ? c.hidden : peerbus::codec::bf16::row_bytes(c.hidden), 0};
  if (c.do_expand) {
    const moe::compact layout{.alignment = c.expert_alignment};
    return {wanted, layout.geometry(wanted, c.ranks), c.ranks, row};
  }
  return {wanted, moe::rank_major{}.geometry(wanted, c.ranks), c.ranks, row};
}

/// Adds what a platform says of an operation, unless it said so before.
void add(verdict& result, std::string_view what, const deep_ep::finding& f) {
  result.fits = result.fits && !deep_ep::refuses(f);
  const std::string words = describe(f);
  if (std::ranges::none_of(result.findings,
                           [&](const auto& known) { return describe(known.found) == words; }))
    result.findings.push_back({what, f});
}

verdict judge_a2e(const options& chosen, deep_ep::profile platform) {
  verdict result{.platform = platform, .fits = true, .findings = {}, .variables = {}};
  cann::apart_call c = chosen.apart;
  const std::size_t mb = cann::required_hccl_buffsize_mb(c);
  if (c.hccl_buffsize_mb == 0) c.hccl_buffsize_mb = mb;
  for (const auto what : cann::apart_operations) {
    c.what = what;
    // Of attention ranks one, as they do the same.
    for (c.rank = 0; c.rank <= c.expert_rank_size; ++c.rank) {
      c.batch_size = cann::batch_size_of(c);
      cann::examine(platform, c,
                    [&](const deep_ep::finding& f) { add(result, to_string(what), f); });
    }
  }
  if (result.fits && mb > deep_ep::default_hccl_buffsize_mb)
    result.variables.push_back(
        {"HCCL_BUFFSIZE", true, mb, "MB, the same on all ranks; 200 if not set"});
  return result;
}

}  // namespace

verdict judge(const options& chosen, deep_ep::profile platform) {
  if (chosen.mode == call_mode::a2e) return judge_a2e(chosen, platform);
  verdict result{.platform = platform, .fits = true, .findings = {}, .variables = {}};
  for (deep_ep::call c : calls_of(chosen)) {
    deep_ep::for_each_variable(platform, c, [&](const deep_ep::variable& v) {
      if (std::ranges::none_of(result.variables, [&](const auto& w) { return w.name == v.name; }))
        result.variables.push_back(v);
    });
    c.environment = deep_ep::required_environment(platform, c);
    deep_ep::examine(platform, c,
                     [&](const deep_ep::finding& f) { add(result, to_string(c.what), f); });
  }
  return result;
}

std::optional<memory> memory_of(const options& chosen) {
  if (chosen.mode == call_mode::a2e) return std::nullopt;
  for (const deep_ep::call& c : calls_of(chosen))
    if (!deep_ep::fits(deep_ep::profile::unrestricted, c)) return std::nullopt;
  const deep_ep::call& c = chosen.call;
  if (chosen.mode != call_mode::low_latency) {
    const bool normal = chosen.mode == call_mode::normal;
    memory result{.deep_ep_function = normal ? "Config().get_nvl_buffer_size_hint"
                                             : "EPBuffer.get_buffer_size_hint",
                  .deep_ep = {},
                  .hccl = {},
                  .peerbus = map_of_calls(chosen),
                  .arrays = 0};
    if (normal && (c.ranks <= 8 || c.ranks % 8 == 0))
      result.deep_ep = deep_ep::config{}.nvl_buffer_size_hint(2 * c.hidden, c.ranks);
    if (!normal)
      result.deep_ep = deep_ep::ep_buffer_size_hint(c.ranks, c.max_tokens, c.hidden, c.top_k,
                                                    c.dtype == deep_ep::element_type::fp8_e4m3,
                                                    c.allow_multiple_reduction);
    return result;
  }

  const deep_ep::low_latency_shape shape{.num_max_dispatch_tokens_per_rank = c.max_tokens,
                                         .hidden = c.hidden,
                                         .num_ranks = c.ranks,
                                         .num_experts = c.experts,
                                         .num_topk = c.top_k,
                                         .use_fp8 = c.use_fp8,
                                         .use_ue8m0 = c.use_ue8m0,
                                         .in_flight = chosen.in_flight,
                                         .zero_copy = c.zero_copy};
  memory result{
      .deep_ep_function = "get_low_latency_rdma_size_hint",
      .deep_ep = deep_ep::low_latency_rdma_size_hint(c.max_tokens, c.hidden, c.ranks, c.experts),
      .hccl = {},
      .peerbus = deep_ep::low_latency_map(shape),
      .arrays = deep_ep::low_latency_array_bytes(shape)};
  using deep_ep::hccl_rule;
  for (const hccl_rule rule :
       {hccl_rule::a3_fullmesh_v1, hccl_rule::a3_fullmesh_v2, hccl_rule::a2_fullmesh,
        hccl_rule::a2_hierarchy, hccl_rule::deep_ep_ascend, hccl_rule::deep_ep_ascend_layered})
    result.hccl.push_back({rule, deep_ep::hccl_bytes(rule, {.max_tokens = c.max_tokens,
                                                            .hidden = c.hidden,
                                                            .ranks = c.ranks,
                                                            .experts = c.experts,
                                                            .top_k = c.top_k})});
  return result;
}

}  // namespace deep_ep_check
