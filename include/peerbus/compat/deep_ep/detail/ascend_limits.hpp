// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <peerbus/compat/deep_ep/call.hpp>
#include <peerbus/compat/deep_ep/detail/checker.hpp>
#include <peerbus/compat/deep_ep/finding.hpp>
#include <peerbus/compat/deep_ep/hccl_buffsize.hpp>

/// The limits of DeepEP's API on Ascend NPUs: DeepEP-Ascend over CANN's operators. Where their
/// documents disagree, the tighter limit is used, so that a call that passes here works with each
/// of them. docs/profiles.md lists the sources.
namespace peerbus::deep_ep::detail {

enum class ascend : std::uint8_t { a2, a3 };

inline constexpr std::array<std::uint64_t, 13> a2_ranks{2,  3,  4,  5,   6,   7,  8,
                                                        16, 32, 64, 128, 192, 256};
inline constexpr std::array<std::uint64_t, 3> a2_hierarchy_ranks{16, 32, 64};

/// Returns whether the ranks of a call span several nodes of A2, where transfers between nodes have
/// limits of their own.
constexpr bool a2_spans_nodes(const call& c) noexcept { return c.ranks > ranks_per_node(c, 8); }

/// Returns the algorithm of the call: the algorithm that it names, or the algorithm that
/// `automatic` stands for.
constexpr comm_algorithm algorithm_of(ascend platform, const call& c) noexcept {
  if (c.algorithm != comm_algorithm::automatic) return c.algorithm;
  if (platform == ascend::a3) return comm_algorithm::fullmesh_v1;
  const auto& layered = a2_hierarchy_ranks;
  return a2_spans_nodes(c) && std::find(layered.begin(), layered.end(), c.ranks) != layered.end()
             ? comm_algorithm::hierarchy
             : comm_algorithm::fullmesh;
}

/// Returns the HCCL_BUFFSIZE that the call needs, in MB: the largest result of the rules of CANN's
/// operator and of DeepEP-Ascend. Returns 0 in normal mode, for which no rule is published, and for
/// a call without ranks.
constexpr std::size_t ascend_hccl_buffsize_mb(ascend platform, const call& c) noexcept {
  if (!is_low_latency(c.what) || c.ranks == 0) return 0;
  const hccl_shape shape{.max_tokens = c.max_tokens,
                         .hidden = c.hidden,
                         .ranks = c.ranks,
                         .experts = c.experts,
                         .top_k = c.top_k};
  const comm_algorithm algorithm = algorithm_of(platform, c);
  const bool layered = platform == ascend::a2 && algorithm == comm_algorithm::hierarchy;
  std::size_t bytes =
      hccl_bytes(layered ? hccl_rule::deep_ep_ascend_layered : hccl_rule::deep_ep_ascend, shape);
  if (platform == ascend::a3)
    bytes = std::max(
        bytes, hccl_bytes(algorithm == comm_algorithm::fullmesh_v2 ? hccl_rule::a3_fullmesh_v2
                                                                   : hccl_rule::a3_fullmesh_v1,
                          shape));
  return hccl_buffsize_mb(bytes);
}

inline constexpr std::size_t tokens_per_round = 8192;
inline constexpr std::size_t most_tokens_of_rounds = 131072;

/// Returns the DEEPEP_NORMAL_LONG_SEQ_ROUND that `tokens` tokens need on A3.
constexpr std::size_t normal_rounds(std::size_t tokens) noexcept {
  return std::max<std::size_t>(1, (tokens + tokens_per_round - 1) / tokens_per_round);
}

template <class Visit>
constexpr void check_ascend_normal(ascend platform, const call& c, checker<Visit>& check) {
  if (platform == ascend::a2) {
    const bool nodes = a2_spans_nodes(c);
    check.number("hidden", c.hidden, expectation::exactly(7168),
                 "normal mode has no other on A2: fill tokens up to 7168, or use low latency");
    check.number("num_tokens", c.tokens, expectation::at_most(nodes ? 4096 : 8000),
                 "split the batch");
    check.number("num_ranks in normal mode", c.ranks, expectation::at_most(64),
                 "normal mode has at most 8 nodes on A2: use low latency");
  } else {
    check.number("num_ranks in normal mode", c.ranks, expectation::at_most(384),
                 "use low latency, which has up to 768");
    if (check.number("hidden", c.hidden, expectation::between(1024, 8192),
                     "fill tokens up to 1024 channels; there is no way beyond 8192"))
      check_whole_units(c, 2, check);
    const std::size_t rounds = c.environment.normal_long_seq_rounds;
    check.number(
        "DEEPEP_NORMAL_LONG_SEQ_ROUND", rounds, expectation::between(1, 256),
        "set it to as many rounds of 8192 tokens as the batch has: ", normal_rounds(c.tokens));
    check.number("num_tokens", c.tokens, expectation::at_most(most_tokens_of_rounds),
                 "split the batch");
    if (c.tokens <= most_tokens_of_rounds)
      check.number(
          "num_tokens", c.tokens, expectation::at_most(rounds * tokens_per_round),
          "send in more rounds: set DEEPEP_NORMAL_LONG_SEQ_ROUND=", normal_rounds(c.tokens));
  }
  const auto no_effect = finding_kind::no_effect;
  if (c.what == operation::normal_dispatch) {
    check.words(finding_kind::refused, "x's type", c.dtype != element_type::fp8_e4m3,
                to_string(c.dtype), "bf16",
                "pass bf16; DEEP_NORMAL_MODE_USE_INT8_QUANT=1 sends int8 per token instead");
    check.absent(finding_kind::refused, "handle", c.cached_handle,
                 "there is no cached mode: dispatch anew with topk_idx");
    check.number("num_worst_tokens", c.num_worst_tokens, expectation::exactly(0),
                 "leave it at 0: the host waits for the counts, so this cannot go into a graph", 0,
                 no_effect);
  } else {
    check.absent(no_effect, "bias", c.bias_given, "add the bias to combine's result yourself");
  }
  check.absent(no_effect, "config", c.config_given, "leave it out: there is nothing to tune");
  check.off(no_effect, "allocate_on_comm_stream", c.allocate_on_comm_stream,
            "leave it out and keep the tensors alive until the event");
}

template <class Visit>
constexpr void check_ascend_low_latency(ascend platform, const call& c, checker<Visit>& check) {
  const comm_algorithm algorithm = algorithm_of(platform, c);
  const bool v2 = algorithm == comm_algorithm::fullmesh_v2;
  std::size_t most_tokens = 512;
  if (platform == ascend::a2) {
    most_tokens = 256;
    check.words(finding_kind::refused, "comm_alg",
                algorithm == comm_algorithm::fullmesh || algorithm == comm_algorithm::hierarchy,
                to_string(algorithm), "fullmesh or hierarchy", "leave the choice to the platform");
    if (algorithm == comm_algorithm::hierarchy) {
      check.number("num_ranks with hierarchy", c.ranks, expectation::one_of(a2_hierarchy_ranks),
                   "use another number of ranks, or fullmesh");
      check.words(finding_kind::refused, "-1 in topk_idx with hierarchy", !c.dropped, "given",
                  "none", "choose fullmesh, or route every slot to an expert");
    }
    if (check.number("hidden", c.hidden, expectation::between(32, 7168),
                     "fill tokens up to 32 channels; there is no way beyond 7168"))
      check.number("hidden", c.hidden, expectation::multiple_of(32),
                   "fill tokens up with zero channels to a multiple of ", 32);
  } else {
    if (v2) most_tokens = 256;
    check.words(finding_kind::refused, "comm_alg", v2 || algorithm == comm_algorithm::fullmesh_v1,
                to_string(algorithm), "fullmesh_v1 or fullmesh_v2",
                "leave the choice to the platform");
    if (check.number("hidden", c.hidden, expectation::between(1024, 8192),
                     "fill tokens up to 1024 channels; there is no way beyond 8192"))
      check_whole_units(c, c.what == operation::low_latency_dispatch && c.use_fp8 ? 1 : 2, check);
    if (v2) {
      check.number("num_topk with fullmesh_v2", c.top_k, expectation::at_most(12),
                   "choose fewer experts per token, or fullmesh_v1");
      check.words(finding_kind::refused, "-1 in topk_idx with fullmesh_v2", !c.dropped, "given",
                  "none", "choose fullmesh_v1, or route every slot to an expert");
    }
  }
  check.number("num_max_dispatch_tokens_per_rank", c.max_tokens, expectation::at_most(most_tokens),
               "split the batch, or use normal mode");
  const std::size_t given = c.environment.hccl_buffsize_mb == 0 ? default_hccl_buffsize_mb
                                                                : c.environment.hccl_buffsize_mb;
  const std::size_t needed = ascend_hccl_buffsize_mb(platform, c);
  check.number("HCCL_BUFFSIZE", given, expectation::at_least(needed),
               "on all ranks, set HCCL_BUFFSIZE=", needed);

  const auto no_effect = finding_kind::no_effect;
  check.off(no_effect, "async_finish", c.async_finish,
            "leave it out: the call always waits for its kernels");
  check.off(no_effect, "return_recv_hook", c.return_recv_hook,
            "leave it out: the call always receives; overlap by a second stream instead");
  check.absent(no_effect, "wait_recv_cost_stats", c.wait_statistics_given,
               "leave it out; dispatch and combine of normal mode have such statistics");
  if (c.what == operation::low_latency_dispatch) {
    check.absent(no_effect, "cumulative_local_expert_recv_stats", c.cumulative_statistics_given,
                 "leave it out and add up recv_count yourself");
    check.off(finding_kind::refused, "use_ue8m0", c.use_ue8m0,
              "leave it out: UE8M0 scales need the next generation of NPUs");
    check.off(no_effect, "round_scale", c.round_scale,
              "leave it out: the one f32 scale of a token is not rounded");
    if (c.use_fp8)
      check.differs("use_fp8", "gives int8 with one f32 scale per token, [rows], not fp8 per 128");
    check.differs("recv_x", "is packed, [rows, hidden], expert after expert, without the padding");
    check.differs("recv_count", "is int64, not int32");
    if (c.weights_given)
      check.differs("topk_weights", "brings no weights and ranks of rows: there are 5 results");
  } else {
    check.off(finding_kind::refused, "use_logfmt", c.use_logfmt,
              "leave it out: combine has no such argument");
    check.off(no_effect, "zero_copy", c.zero_copy, "leave it out and pass the experts' tensor");
    check.absent(no_effect, "out", c.out_given, "leave it out and copy the returned tensor");
  }
}

template <class Visit>
constexpr void check_ascend(ascend platform, const call& c, checker<Visit>& check) {
  if (!check_is_buffer(c, check)) return;
  check_possible(c, check);
  check_rows_are_known(c, check);
  if (platform == ascend::a2)
    check.number("num_ranks", c.ranks, expectation::one_of(a2_ranks),
                 "use the next of these numbers, by nodes of 8");
  else
    check.number("num_ranks", c.ranks, expectation::between(2, 768),
                 "use at least 2 ranks, and at most the 768 of one super node");
  check_even_experts(c, check);
  check.number("num_experts", c.experts, expectation::at_most(platform == ascend::a2 ? 512 : 1024),
               "have fewer experts; DeepEP-Ascend has no more");
  if (platform == ascend::a2)
    check.number("experts per rank", local_experts(c), expectation::at_most(24),
                 "spread the experts over more ranks");
  check.number("num_topk", c.top_k, expectation::at_most(16), "choose fewer experts per token");
  check.words(finding_kind::refused, "topk_idx", !is_by_rank(c), "none", "given",
              "give topk_idx and topk_weights: is_token_in_rank alone does not do there");
  if (platform == ascend::a2 && a2_spans_nodes(c) && !is_by_rank(c))
    check.number("num_topk", c.top_k, expectation::at_least(2),
                 "between nodes, give each token a second expert, with weight 0");
  check.words(finding_kind::refused, "MOE_ENABLE_TOPK_NEG_ONE",
              !c.dropped || c.environment.moe_enable_topk_neg_one, "not set",
              "1 for -1 in topk_idx",
              "set MOE_ENABLE_TOPK_NEG_ONE=1, or route every slot to an expert");
  if (c.tokens == 0) check.differs("num_tokens", "0 is filled up to one token");
  if (is_low_latency(c.what))
    check_ascend_low_latency(platform, c, check);
  else
    check_ascend_normal(platform, c, check);
}

}  // namespace peerbus::deep_ep::detail
