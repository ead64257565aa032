// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/compat/deep_ep/call.hpp>
#include <peerbus/compat/deep_ep/detail/bucket_limits.hpp>
#include <peerbus/compat/deep_ep/detail/checker.hpp>
#include <peerbus/compat/deep_ep/finding.hpp>

/// The limits of the platforms with version 2.5's `EPBuffer`: DeepEP itself at commit 93eb6eb,
/// whose kernels of version 2 (commit dd758ca) state the numbers, and DeepSeek's DeepEP-Ascend,
/// whose README states them.
namespace peerbus::deep_ep::detail {

/// Checks the limits that all platforms with `EPBuffer` have.
template <class Visit>
constexpr void check_ep(const call& c, checker<Visit>& check) {
  check_is_ep(c, check);
  check_possible(c, check);
  check_even_experts(c, check);
  if (!is_ep(c.what)) return;
  check.off(finding_kind::refused, "do_handle_copy", c.do_handle_copy,
            "leave it out, and do not change topk_idx as long as its handle is used");
  if (c.previous_event_given)
    check.words(finding_kind::refused, "allocate_on_comm_stream", c.allocate_on_comm_stream,
                "false", "true", "set it wherever previous_event is given");
}

template <class Visit>
constexpr void check_deepep_v2_5(const call& c, checker<Visit>& check) {
  if (!moves_tokens(c.what)) return check_deepep_v2_5_bucket(c, check);
  check_ep(c, check);
  check.number("num_ranks", c.ranks, expectation::at_most(1024), "run fewer ranks");
  check.number("num_experts", c.experts, expectation::at_most(2048), "have fewer experts");
  check.number("experts per rank", local_experts(c), expectation::at_most(256),
               "spread the experts over more ranks");
  check.number("num_topk", c.top_k, expectation::at_most(32), "choose fewer experts per token");
  const std::size_t channels = c.dtype == element_type::fp8_e4m3 ? 32 : 16;
  if (check.number("hidden", c.hidden, expectation::at_least(1), "give tokens channels"))
    check.number("hidden", c.hidden, expectation::multiple_of(channels),
                 "fill tokens up with zero channels to whole 32 bytes");
}

template <class Visit>
constexpr void check_ascend_950(const call& c, checker<Visit>& check) {
  if (!moves_tokens(c.what)) return check_ascend_950_bucket(c, check);
  check_ep(c, check);
  check_rows_are_known(c, check);
  check.number("num_ranks", c.ranks, expectation::multiple_of(2), "run an even number of ranks");
  if (check.number("hidden", c.hidden, expectation::at_least(1), "give tokens channels"))
    check_whole_units(c, c.dtype == element_type::fp8_e4m3 ? 1 : 2, check);
  if (!is_ep(c.what)) return;
  const auto refused = finding_kind::refused;
  check.words(refused, "do_expand", c.do_expand, "false", "true",
              "set do_expand: rows come grouped by expert only");
  check.words(refused, "allow_multiple_reduction", c.allow_multiple_reduction, "false", "true",
              "leave it at true: each rank adds up its rows of a token and rounds the sum to bf16");
  check.words(refused, "topk_idx's type", !c.narrow_topk_idx, "another type", "int64",
              "convert topk_idx to int64");
  check.absent(refused, "sl_idx", c.sl_idx_given, "leave it out");
  check.number("num_qps", c.num_qps, expectation::exactly(0), "leave it at 0");
  if (c.num_sms != 0) check.differs("num_sms", "counts AI cores");
}

}  // namespace peerbus::deep_ep::detail
