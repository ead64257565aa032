// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/compat/deep_ep/call.hpp>
#include <peerbus/compat/deep_ep/detail/checker.hpp>
#include <peerbus/compat/deep_ep/finding.hpp>

/// The limits of version 2.5's calls that move no tokens: the calls of `BucketBuffer`, and
/// `EPBuffer.lb_prefetch_weights`. DeepEP's limits are from `csrc/buffers/bucket.hpp` at commit
/// def8651, which is version 2.5. DeepSeek's DeepEP-Ascend states its limits in its README.
namespace peerbus::deep_ep::detail {

inline constexpr std::size_t most_buckets = 64;  ///< largest number of tensors of a list

template <class Visit>
constexpr void check_deepep_v2_5_bucket(const call& c, checker<Visit>& check) {
  if (c.what == operation::ep_prefetch_weights) return;  // Checks its tensors itself.
  check.number("tensors of the list", c.tensors, expectation::between(1, most_buckets),
               "split the list, or make no call if it is empty");
  if (c.tensors == 0) return;
  const bool holds_values =
      check.number("bytes of a tensor", c.tensor_bytes, expectation::at_least(1),
                   "leave tensors without elements out of the list");
  if (c.what == operation::bucket_all_gather) {
    check.number("num_sms", c.num_sms, expectation::exactly(0),
                 "leave it out: copy engines gather");
    return;
  }
  const std::size_t bytes = c.what == operation::bucket_reduce_scatter ? 32 : 16;
  if (holds_values && c.ranks > 0)
    check.number("common divisor of the tensors' bytes", c.tensor_bytes,
                 expectation::multiple_of(c.ranks * bytes),
                 "fill each tensor up with zeros, so that every rank's part has bytes in multiples "
                 "of ",
                 bytes);
}

template <class Visit>
constexpr void check_ascend_950_bucket(const call& c, checker<Visit>& check) {
  check.number("num_ranks", c.ranks, expectation::multiple_of(2), "run an even number of ranks");
  if (c.what == operation::ep_prefetch_weights)
    check.words(finding_kind::refused, to_string(c.what), false, "called", "torch.distributed",
                "it is not implemented there: move the weights by torch.distributed");
  else
    check.words(finding_kind::refused, to_string(c.what), c.what == operation::bucket_all_gather,
                "called", "BucketBuffer.all_gather",
                "it is not implemented there: call the operation of torch.distributed");
}

}  // namespace peerbus::deep_ep::detail
