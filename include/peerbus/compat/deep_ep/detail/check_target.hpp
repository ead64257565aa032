// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <peerbus/compat/deep_ep/call.hpp>
#include <peerbus/compat/deep_ep/detail/ids.hpp>
#include <peerbus/compat/deep_ep/detail/low_latency_channel.hpp>
#include <peerbus/compat/deep_ep/detail/normal_routing.hpp>
#include <peerbus/compat/deep_ep/low_latency.hpp>
#include <peerbus/compat/deep_ep/normal.hpp>
#include <peerbus/compat/deep_ep/options.hpp>
#include <peerbus/compat/deep_ep/profile.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>

/// The checks of a buffer's calls against the platform that the program is meant to run on.
namespace peerbus::deep_ep::detail {

/// Returns the element type of `x` as `call` names it.
inline element_type element_of(const const_tensor& x) noexcept {
  switch (x.type()) {
    case dtype::bfloat16: return element_type::bf16;
    case dtype::float8_e4m3fn: return element_type::fp8_e4m3;
    default: return element_type::other;
  }
}

/// Returns whether `topk_idx` contains negative ids.
inline bool has_dropped(const const_tensor& topk_idx) {
  bool found = false;
  for_each_id(topk_idx, topk_idx.elements(),
              [&](std::size_t, std::int64_t id) { found = found || id < 0; });
  return found;
}

/// Returns whether `topk_idx` is given and does not have DeepEP's type, int64.
inline bool is_narrow(const const_tensor& topk_idx) noexcept {
  return topk_idx && topk_idx.type() != dtype::int64;
}

/// Returns a call with the members that all calls of a buffer share.
inline call call_of(const buffer_options& options, std::size_t ranks, operation what) noexcept {
  call made;
  made.what = what;
  made.ranks = ranks;
  made.ranks_per_node = options.target_ranks_per_node;
  made.environment = options.target_is;
  return made;
}

/// Returns a call with the members that both calls of the normal mode share.
template <class Args>
call normal_call_of(const buffer_options& options, std::size_t ranks, operation what,
                    const Args& args, const normal_routing& routing) noexcept {
  call made = call_of(options, ranks, what);
  made.tokens = routing.tokens;
  made.hidden = args.x.size(1);
  made.top_k = routing.by_experts ? routing.top_k : 0;
  made.experts = routing.listed_experts;
  made.dtype = element_of(args.x);
  made.config_given = args.config.has_value();
  made.previous_event_given = args.previous_event.has_value();
  made.allocate_on_comm_stream = args.allocate_on_comm_stream;
  made.async_finish = args.async_finish;
  return made;
}

///@{
/// Requires that the buffer's target accepts the call.
/// Throws: `error` invalid_argument.
inline void check_target(const buffer_options& options, std::size_t ranks,
                         const low_latency_dispatch_args& args) {
  if (options.target == profile::unrestricted) return;
  call asked = call_of(options, ranks, operation::low_latency_dispatch);
  asked.tokens = args.x.size(0);
  asked.max_tokens = args.num_max_dispatch_tokens_per_rank;
  asked.hidden = args.x.size(1);
  asked.top_k = args.topk_idx.size(1);
  asked.experts = args.num_experts;
  asked.dtype = element_of(args.x);
  asked.dropped = has_dropped(args.topk_idx);
  asked.narrow_topk_idx = is_narrow(args.topk_idx);
  asked.use_fp8 = args.use_fp8;
  asked.round_scale = args.round_scale;
  asked.use_ue8m0 = args.use_ue8m0;
  asked.cumulative_statistics_given = static_cast<bool>(args.cumulative_local_expert_recv_stats);
  asked.wait_statistics_given = static_cast<bool>(args.dispatch_wait_recv_cost_stats);
  asked.weights_given = static_cast<bool>(args.topk_weights);
  asked.return_recv_hook = args.return_recv_hook;
  asked.async_finish = args.async_finish;
  require(options.target, asked);
}

inline void check_target(const buffer_options& options, std::size_t ranks,
                         const low_latency_combine_args& args, const low_latency_key& shape) {
  if (options.target == profile::unrestricted) return;
  call asked = call_of(options, ranks, operation::low_latency_combine);
  asked.tokens = args.topk_idx.size(0);
  asked.max_tokens = shape.max_tokens;
  asked.hidden = shape.hidden;
  asked.top_k = shape.top_k;
  asked.experts = shape.experts;
  asked.dropped = has_dropped(args.topk_idx);
  asked.narrow_topk_idx = is_narrow(args.topk_idx);
  asked.gaps_in_x = !args.x.contiguous();
  asked.use_logfmt = args.use_logfmt;
  asked.zero_copy = args.zero_copy;
  asked.out_given = static_cast<bool>(args.out);
  asked.wait_statistics_given = static_cast<bool>(args.combine_wait_recv_cost_stats);
  asked.return_recv_hook = args.return_recv_hook;
  asked.async_finish = args.async_finish;
  require(options.target, asked);
}

inline void check_target(const buffer_options& options, std::size_t ranks,
                         const dispatch_args& args, const normal_routing& routing) {
  if (options.target == profile::unrestricted) return;
  call asked = normal_call_of(options, ranks, operation::normal_dispatch, args, routing);
  asked.dropped = routing.by_experts &&
                  std::find(routing.ids.begin(), routing.ids.end(), -1) != routing.ids.end();
  asked.narrow_topk_idx = is_narrow(args.topk_idx);
  asked.expert_alignment = args.expert_alignment;
  asked.num_worst_tokens = args.num_worst_tokens;
  asked.cached_handle = static_cast<bool>(args.handle);
  require(options.target, asked);
}

inline void check_target(const buffer_options& options, std::size_t ranks, const combine_args& args,
                         const normal_routing& routing) {
  if (options.target == profile::unrestricted) return;
  call asked = normal_call_of(options, ranks, operation::normal_combine, args, routing);
  asked.gaps_in_x = !args.x.contiguous();
  asked.bias_given = args.bias[0] || args.bias[1];
  require(options.target, asked);
}
///@}

}  // namespace peerbus::deep_ep::detail
