// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <peerbus/compat/deep_ep/detail/checker.hpp>
#include <peerbus/compat/deep_ep/finding.hpp>
#include <peerbus/compat/deep_ep/hccl_buffsize.hpp>
#include <peerbus/compat/deep_ep/profile.hpp>

/// @file
/// Checks whether a call of the operators between attention and experts, aclnnA2e and aclnnE2a,
/// would work on an Ascend NPU, without needing one. docs/profiles.md lists limits and sources.
namespace peerbus::cann {

using deep_ep::profile;

/// The operators that move tokens of attention ranks to expert ranks and outputs back.
enum class apart_operation : std::uint8_t {
  a2e,  ///< aclnnA2e
  e2a   ///< aclnnE2a
};

/// Both operators, in the order in which a batch takes them.
inline constexpr apart_operation apart_operations[] = {apart_operation::a2e, apart_operation::e2a};

/// Returns the name of the operator, or "unknown".
constexpr std::string_view to_string(apart_operation what) noexcept {
  switch (what) {
    case apart_operation::a2e: return "aclnnA2e";
    case apart_operation::e2a: return "aclnnE2a";
  }
  return "unknown";
}

/// The arguments of one call of aclnnA2e or aclnnE2a on one rank, as plain values. Expert ranks
/// come first.
struct apart_call {
  apart_operation what = apart_operation::a2e;  ///< the operator that is called
  std::size_t expert_rank_size = 0;             ///< E
  std::size_t attention_rank_size = 0;          ///< A
  std::size_t rank = 0;    ///< number of this rank, an expert rank if it is below E
  std::size_t tokens = 0;  ///< number of tokens of each attention rank
  /// The tokens of this rank: on an attention rank its own tokens, on an expert rank the rows of
  /// the attention ranks that it serves. See `batch_size_of`.
  std::size_t batch_size = 0;
  std::size_t hidden_size = 0;  ///< number of elements of a token
  std::size_t topk = 0;         ///< number of experts that a token chooses
  deep_ep::element_type dtype = deep_ep::element_type::bf16;  ///< type of `x` or `expandX`
  std::size_t aiv_num = 0;                                    ///< number of cores that copy

  // aclnnA2e
  bool compute_gate = false;      ///< attention computes the gate: ids and scales travel
  bool expert_ids_given = false;  ///< expertIds, int32 [tokens, topk]
  bool scales_given = false;      ///< scales, float32 [tokens, topk]
  bool wide_expert_ids = false;   ///< expertIds is given and is not int32

  std::size_t hccl_buffsize_mb = 0;  ///< HCCL_BUFFSIZE of the target; 0: not set, which means 200
};

/// Returns the number of attention ranks that `expert_rank` serves: the attention ranks whose
/// number modulo E is `expert_rank`. `c.expert_rank_size` must not be 0.
constexpr std::size_t attention_ranks_of(const apart_call& c, std::size_t expert_rank) noexcept {
  return c.attention_rank_size / c.expert_rank_size +
         (expert_rank < c.attention_rank_size % c.expert_rank_size ? 1 : 0);
}

/// Returns the `batchSize` that the call's rank must give. An expert rank divides its own
/// `batchSize` by a number of attention ranks to get the tokens of each: in aclnnE2a the number
/// that it serves, in aclnnA2e the largest number that any expert rank serves. `c.expert_rank_size`
/// must not be 0.
constexpr std::size_t batch_size_of(const apart_call& c) noexcept {
  if (c.rank >= c.expert_rank_size) return c.tokens;
  // In aclnnA2e all expert ranks give what the one with most attention ranks does.
  const std::size_t rank = c.what == apart_operation::a2e ? 0 : c.rank;
  return c.tokens * attention_ranks_of(c, rank);
}

/// Returns the HCCL_BUFFSIZE that the call needs, in MB. It has room for flags, and for the tokens
/// with their ids and scales.
constexpr std::size_t required_hccl_buffsize_mb(const apart_call& c) noexcept {
  const std::size_t ranks = c.expert_rank_size + c.attention_rank_size;
  return deep_ep::hccl_buffsize_mb(2 * deep_ep::hccl_mb + 1024 * ranks + sizeof(std::int32_t) +
                                   c.tokens * (8 * c.topk + 2 * c.hidden_size));
}

namespace detail {

/// Checks the call's `batchSize`.
template <class Visit>
constexpr void check_apart_batch(const apart_call& c, deep_ep::detail::checker<Visit>& check) {
  const std::size_t needed = batch_size_of(c);
  const auto expected = deep_ep::expectation::exactly(needed);
  if (c.rank >= c.expert_rank_size)
    check.number("batchSize", c.batch_size, expected,
                 "give the tokens of this attention rank, filled up to as many as the others have");
  else if (c.what == apart_operation::a2e)
    check.number("batchSize", c.batch_size, expected,
                 "give the tokens of as many attention ranks as the expert rank with most has, on "
                 "all expert ranks: ",
                 needed);
  else
    check.number("batchSize", c.batch_size, expected,
                 "give the tokens of the attention ranks that this expert rank serves: ", needed);
}

/// Checks the arguments for the gate's results, which travel with the tokens or not at all.
template <class Visit>
constexpr void check_apart_gate(const apart_call& c, deep_ep::detail::checker<Visit>& check) {
  using deep_ep::expectation;
  using deep_ep::finding_kind;
  const bool sends = c.rank >= c.expert_rank_size;
  if (!c.compute_gate) {
    check.absent(finding_kind::no_effect, "expertIds", sends && c.expert_ids_given,
                 "set computeGate to 1, or leave them out: they do not travel");
    check.absent(finding_kind::no_effect, "scales", sends && c.scales_given,
                 "set computeGate to 1, or leave them out: they do not travel");
    return;
  }
  check.words(finding_kind::refused, "expertIds", !sends || c.expert_ids_given, "none", "given",
              "give what the gate chose, or set computeGate to 0");
  check.words(finding_kind::refused, "scales", !sends || c.scales_given, "none", "given",
              "give the weights of the gate, or set computeGate to 0");
  check.words(finding_kind::refused, "expertIds' type", !c.wide_expert_ids, "other", "int32",
              "convert them to int32");
  check.number("aivNum", c.aiv_num, expectation::at_least(3),
               "one core carries ids, one scales, and the others tokens");
  check.number("tokens x topk", c.tokens * c.topk, expectation::at_most(48896),
               "send fewer tokens at once: a core receives all ids of an attention rank in its own "
               "memory");
}

}  // namespace detail

/// Calls `visit(const deep_ep::finding&)` for each thing that the platform does not do as the call
/// asks, in a fixed order. Reads only the call and allocates nothing.
template <class Visit>
constexpr void examine(profile platform, const apart_call& c, Visit&& visit) {
  using deep_ep::expectation;
  using deep_ep::finding_kind;
  deep_ep::detail::checker check{visit};
  const bool has_it = platform == profile::ascend_a3 || platform == profile::ascend_950;
  check.words(finding_kind::refused, to_string(c.what), has_it, "called",
              "an operator of ascend_a3 or ascend_950",
              "it is not there: dispatch to expert ranks, whose tokens are none");
  if (!has_it) return;
  if (!check.number("expertRankSize", c.expert_rank_size, expectation::at_least(1),
                    "run at least one expert rank"))
    return;
  const std::size_t ranks = c.expert_rank_size + c.attention_rank_size;
  const bool all_serve = check.number(
      "attentionRankSize", c.attention_rank_size, expectation::at_least(c.expert_rank_size),
      "run no more expert ranks than attention ranks: those without one would wait "
      "for it forever");
  check.number("expertRankSize + attentionRankSize", ranks,
               expectation::at_most(platform == profile::ascend_a3 ? 384 : 64), "run fewer ranks");
  const bool is_member =
      check.number("rank", c.rank, expectation::at_most(ranks - 1),
                   "number expert ranks from 0 on, and attention ranks behind them");
  check.number("hiddenSize", c.hidden_size, expectation::at_least(1), "give tokens channels");
  check.number("topk", c.topk, expectation::at_least(1), "choose at least one expert per token");
  check.number("aivNum", c.aiv_num, expectation::at_least(1), "let at least one core copy");
  check.words(finding_kind::refused, c.what == apart_operation::a2e ? "x's type" : "expandX's type",
              c.dtype == deep_ep::element_type::bf16, to_string(c.dtype), "bf16",
              "convert it to bf16: with fp16, which the operator accepts, nothing travels");
  if (all_serve && is_member) detail::check_apart_batch(c, check);
  if (c.what == apart_operation::a2e) detail::check_apart_gate(c, check);
  check.number("HCCL_BUFFSIZE",
               c.hccl_buffsize_mb == 0 ? deep_ep::default_hccl_buffsize_mb : c.hccl_buffsize_mb,
               expectation::at_least(required_hccl_buffsize_mb(c)),
               "on all ranks, set HCCL_BUFFSIZE=", required_hccl_buffsize_mb(c));
}

/// Requires that the call works on the platform.
/// Throws: `error` (`invalid_argument`) that lists everything that the platform refuses of the
/// call: each limit, the value, and the change to make.
inline void require(profile platform, const apart_call& c) {
  deep_ep::detail::require_of(platform, c);
}

}  // namespace peerbus::cann
