// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string_view>

#include <peerbus/compat/deep_ep/call.hpp>
#include <peerbus/compat/deep_ep/finding.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/moe/config.hpp>

namespace peerbus::deep_ep::detail {

/// A visitor of a call's checks: it calls `visit(const finding&)` for each check that fails.
template <class Visit>
class checker {
 public:
  constexpr explicit checker(Visit& visit) noexcept : visit_{visit} {}

  /// Checks a number. Returns whether it passes.
  constexpr bool number(std::string_view what, std::uint64_t given, const expectation& expected,
                        std::string_view advice, std::uint64_t advised = 0,
                        finding_kind kind = finding_kind::refused) {
    const bool passes = expected.accepts(given);
    if (!passes) visit_(finding{kind, what, given, {}, expected, advice, advised});
    return passes;
  }
  /// Checks an option that must stay off.
  constexpr void off(finding_kind kind, std::string_view what, bool given,
                     std::string_view advice) {
    words(kind, what, !given, "true", "false", advice);
  }
  /// Checks an optional argument that must be left out.
  constexpr void absent(finding_kind kind, std::string_view what, bool given,
                        std::string_view advice) {
    words(kind, what, !given, "given", "none", advice);
  }
  /// Checks a value that is not a number. `given` and `expected` are its texts in the finding.
  constexpr void words(finding_kind kind, std::string_view what, bool fits, std::string_view given,
                       std::string_view expected, std::string_view advice) {
    if (!fits) visit_(finding{kind, what, 0, given, expectation::text(expected), advice, 0});
  }
  /// Reports that results look different on the platform.
  constexpr void differs(std::string_view what, std::string_view how) {
    visit_(finding{finding_kind::differs, what, 0, "asked for", expectation::text(""), how, 0});
  }

 private:
  Visit& visit_;
};

/// Returns the number of ranks of a node: the call's number, or `usual` if the call has none.
constexpr std::size_t ranks_per_node(const call& c, std::size_t usual) noexcept {
  return c.ranks_per_node == 0 ? usual : c.ranks_per_node;
}

/// Returns whether a call of the normal mode has no topk_idx, so that only is_token_in_rank states
/// where tokens go.
constexpr bool is_by_rank(const call& c) noexcept {
  return c.top_k == 0 &&
         (c.what == operation::normal_dispatch || c.what == operation::normal_combine);
}

/// Returns the largest number of experts of a rank.
constexpr std::size_t local_experts(const call& c) noexcept {
  return c.ranks == 0 ? c.experts : (c.experts + c.ranks - 1) / c.ranks;
}

/// Checks that each rank has equally many experts, for platforms that require it.
template <class Visit>
constexpr void check_even_experts(const call& c, checker<Visit>& check) {
  if (c.ranks > 0)
    check.number("num_experts", c.experts, expectation::multiple_of(c.ranks),
                 "give every rank as many experts: add idle ones up to ",
                 align_up(c.experts, c.ranks));
}

/// Checks the limits that hold on every platform.
template <class Visit>
constexpr void check_possible(const call& c, checker<Visit>& check) {
  check.number("num_ranks", c.ranks, expectation::at_least(1), "run at least one rank");
  check.number("num_experts", c.experts, expectation::at_least(1), "have at least one expert");
  if (c.experts > 0 && !is_by_rank(c))
    check.number("num_topk", c.top_k, expectation::between(1, c.experts),
                 "a token chooses different experts: lower num_topk, or add experts");
  if (is_ep(c.what))
    check.number("num_tokens", c.tokens, expectation::at_most(c.max_tokens),
                 "send fewer tokens, or raise num_max_tokens_per_rank on all ranks to ", c.tokens);
  if (is_low_latency(c.what)) {
    check.number("num_max_dispatch_tokens_per_rank", c.max_tokens, expectation::at_least(1),
                 "give the most tokens of any rank");
    check.number("num_tokens", c.tokens, expectation::at_most(c.max_tokens),
                 "send fewer tokens, or raise num_max_dispatch_tokens_per_rank on all ranks to ",
                 c.tokens);
  }
  if (is_dispatch(c.what) && !is_low_latency(c.what)) {
    check.number("expert_alignment", c.expert_alignment, expectation::at_least(1),
                 "leave it at 1 for no alignment");
  } else {
    check.words(finding_kind::refused, "x's type", c.dtype == element_type::bf16,
                to_string(c.dtype), "bf16",
                c.what == operation::low_latency_dispatch
                    ? "pass bf16; use_fp8 quantises on the way"
                    : "convert what the experts made to bf16");
  }
}

/// Checks the type of the rows of a dispatch that quantises nothing, for platforms that look at it.
template <class Visit>
constexpr void check_rows_are_known(const call& c, checker<Visit>& check) {
  if (is_dispatch(c.what) && !is_low_latency(c.what))
    check.words(finding_kind::refused, "x's type", c.dtype != element_type::other,
                to_string(c.dtype), "bf16, or fp8_e4m3 with scales", "convert x to bf16");
}

/// Checks the options for rounding and packing the scales of fp8, which exist only in low-latency
/// dispatch.
template <class Visit>
constexpr void check_scale_options(const call& c, checker<Visit>& check) {
  if (c.what != operation::low_latency_dispatch) return;
  check.off(finding_kind::no_effect, "round_scale", c.round_scale && !c.use_fp8,
            "set use_fp8, or leave round_scale out: without fp8 there are no scales");
  check.off(finding_kind::no_effect, "use_ue8m0", c.use_ue8m0 && !c.use_fp8,
            "set use_fp8, or leave use_ue8m0 out: without fp8 there are no scales");
  check.off(finding_kind::refused, "use_ue8m0", c.use_ue8m0 && c.use_fp8 && !c.round_scale,
            "set round_scale too: UE8M0 has room for powers of two only");
}

/// Checks that the call is one of `EPBuffer`, for platforms that have only `EPBuffer`.
template <class Visit>
constexpr void check_is_ep(const call& c, checker<Visit>& check) {
  check.words(finding_kind::refused, "deep_ep.Buffer", is_ep(c.what), "called", "EPBuffer",
              is_dispatch(c.what)
                  ? "there is no Buffer: call EPBuffer.dispatch, with do_expand for rows by expert"
                  : "there is no Buffer: call EPBuffer.combine with the handle of its dispatch");
}

/// Checks that the call is one of `Buffer`, for platforms that have only `Buffer`. Returns whether
/// it is.
template <class Visit>
constexpr bool check_is_buffer(const call& c, checker<Visit>& check) {
  if (c.what == operation::ep_prefetch_weights) {
    check.words(finding_kind::refused, "deep_ep.EPBuffer", false, "called", "Buffer",
                "there is no EPBuffer: move the weights by torch.distributed");
    return false;
  }
  if (!moves_tokens(c.what)) {
    check.words(finding_kind::refused, "deep_ep.BucketBuffer", false, "called", "torch.distributed",
                "there is no BucketBuffer: call the collective operation of torch.distributed");
    return false;
  }
  check.words(finding_kind::refused, "deep_ep.EPBuffer", !is_ep(c.what), "called", "Buffer",
              "there is no EPBuffer: call Buffer.low_latency_dispatch for rows by expert, or "
              "Buffer.dispatch, and the combine of the same mode");
  return !is_ep(c.what);
}

/// Checks that `hidden` elements of `channel_bytes` bytes fill whole units of 16 bytes.
template <class Visit>
constexpr void check_whole_units(const call& c, std::size_t channel_bytes, checker<Visit>& check) {
  if (check.number("hidden", c.hidden, expectation::at_least(1), "give tokens channels"))
    check.number("hidden", c.hidden, expectation::multiple_of(16 / channel_bytes),
                 "fill tokens up with zero channels to whole 16 bytes");
}

/// Returns the product of the factors, or the largest std::uint64_t if the product is larger.
constexpr std::uint64_t saturated_product(std::initializer_list<std::uint64_t> factors) noexcept {
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t product = 1;
  for (const std::uint64_t factor : factors)
    product = factor != 0 && product > most / factor ? most : product * factor;
  return product;
}

/// Checks the limits of the exchange that carries out the call. In low-latency mode the exchange is
/// padded. In normal mode it has room for at least the tokens of the call.
template <class Visit>
constexpr void check_exchange_limits(const call& c, checker<Visit>& check) {
  check.number("num_ranks", c.ranks, expectation::at_most(moe::max_ranks), "run fewer ranks");
  check.number("num_experts", c.experts, expectation::at_most(moe::max_experts),
               "have fewer experts");
  check.number("hidden", c.hidden, expectation::at_most(moe::max_hidden), "give fewer channels");
  check.number("num_topk", c.top_k, expectation::at_most(moe::max_top_k),
               "choose fewer experts per token");
  const bool padded = is_low_latency(c.what);
  const std::uint64_t tokens = padded || is_ep(c.what) ? c.max_tokens : c.tokens;
  check.number("num_ranks x tokens of a rank x num_topk",
               saturated_product({c.ranks, tokens, c.top_k}), expectation::at_most(moe::max_rows),
               "send fewer tokens at once");
  if (padded)
    check.number("num_ranks x num_max_dispatch_tokens_per_rank x experts of a rank",
                 saturated_product({c.ranks, tokens, local_experts(c)}),
                 expectation::at_most(moe::max_rows), "lower num_max_dispatch_tokens_per_rank");
}

/// Checks the limits of peerbus itself.
template <class Visit>
constexpr void check_unrestricted(const call& c, checker<Visit>& check) {
  if (!moves_tokens(c.what)) return;  // The call itself checks its tensors.
  check_possible(c, check);
  check_scale_options(c, check);
  check_exchange_limits(c, check);
  if (c.what == operation::low_latency_dispatch && c.use_fp8 && c.hidden > 0)
    check.number("hidden", c.hidden, expectation::multiple_of(128),
                 "a scale belongs to 128 channels: fill tokens up, or leave use_fp8 out");
  else
    check_whole_units(c, c.dtype == element_type::fp8_e4m3 ? 1 : 2, check);
}

}  // namespace peerbus::deep_ep::detail
