// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <peerbus/compat/deep_ep/call.hpp>
#include <peerbus/compat/deep_ep/detail/ascend_limits.hpp>
#include <peerbus/compat/deep_ep/detail/deepep_v1_limits.hpp>
#include <peerbus/compat/deep_ep/profile.hpp>

namespace peerbus::deep_ep {

/// An environment variable that the target needs for a call. Its texts are valid forever.
struct variable {
  std::string_view name;  ///< such as "HCCL_BUFFSIZE"
  bool set;               ///< if true, set it to `value`; if false, it must not be set
  std::uint64_t value;    ///< no meaning if it must not be set
  std::string_view why;   ///< the reason, or the unit and the default
};

/// Calls `visit(const variable&)` for each variable that must be set or unset for the call.
template <class Visit>
constexpr void for_each_variable(profile platform, const call& c, Visit&& visit) {
  if (platform == profile::unrestricted || !moves_tokens(c.what)) return;
  if (platform == profile::deepep_v1) {
    const std::size_t depth = detail::deepep_v1_qp_depth(c.max_tokens);
    if (is_low_latency(c.what) && depth > detail::deepep_v1_default_qp_depth)
      visit(variable{"NVSHMEM_QP_DEPTH", true, depth,
                     "2 x (num_max_dispatch_tokens_per_rank + 1); 1024 if not set"});
    return;
  }
  if (platform != profile::ascend_a2 && platform != profile::ascend_a3) return;
  const bool a2 = platform == profile::ascend_a2;
  const std::size_t mb = required_hccl_buffsize_mb(platform, c);
  if (mb > default_hccl_buffsize_mb || (a2 && mb != 0))
    visit(variable{"HCCL_BUFFSIZE", true, mb,
                   a2 ? "MB, the same on all ranks; A2 needs it set, even to the default of 200"
                      : "MB, the same on all ranks; 200 if not set"});
  if (c.dropped) visit(variable{"MOE_ENABLE_TOPK_NEG_ONE", true, 1, "for -1 in topk_idx"});
  if (!a2 && !is_low_latency(c.what)) {
    const std::size_t rounds = detail::normal_rounds(c.tokens);
    if (rounds > 1 && c.what == operation::normal_dispatch)
      visit(variable{"DEEPEP_NORMAL_LONG_SEQ_ROUND", true, rounds,
                     "more than 8192 tokens travel in rounds"});
    if (rounds > 1 && c.what == operation::normal_combine)
      visit(variable{"DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ", true, 1,
                     "more than 8192 tokens travel in rounds"});
  }
  if (a2) {
    if (detail::a2_spans_nodes(c)) {
      visit(variable{"HCCL_INTRA_PCIE_ENABLE", true, 1, "for transfers by nodes"});
      visit(variable{"HCCL_INTRA_ROCE_ENABLE", true, 0, "for transfers by nodes"});
    }
    visit(variable{"HCCL_OP_EXPANSION_MODE", false, 0, "operators fail with it on A2"});
  }
}

/// Returns the environment of the call, in which each unset variable has the value that the
/// platform needs. If a call is refused with this environment, either no setting helps, or a value
/// that the caller set is the reason.
constexpr target_environment required_environment(profile platform, const call& c) noexcept {
  target_environment all = c.environment;
  if (all.hccl_buffsize_mb == 0) all.hccl_buffsize_mb = required_hccl_buffsize_mb(platform, c);
  if (all.nvshmem_qp_depth == 0)
    all.nvshmem_qp_depth =
        std::max(detail::deepep_v1_default_qp_depth, detail::deepep_v1_qp_depth(c.max_tokens));
  all.moe_enable_topk_neg_one = true;
  if (all.normal_long_seq_rounds == 1)
    all.normal_long_seq_rounds = std::min<std::size_t>(256, detail::normal_rounds(c.tokens));
  return all;
}

}  // namespace peerbus::deep_ep
