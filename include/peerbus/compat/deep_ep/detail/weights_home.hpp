// SPDX-License-Identifier: MIT
#pragma once

#include <optional>

#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/received.hpp>

namespace peerbus::deep_ep::detail {

/// Requires that in the combine of a batch either all ranks returned weights, or no rank did.
/// Throws, on all ranks: `error` mismatch that names a rank that gave weights and a rank that gave
/// none.
template <class Exchange>
void require_weights_from_all_or_none(Exchange& moe, const moe::ticket& combined, all_ranks ranks) {
  std::optional<rank_id> giver;
  std::optional<rank_id> abstainer;
  for (const rank_id rank : ranks) {
    std::optional<rank_id>& first = moe.attached_by(combined, rank) ? giver : abstainer;
    if (!first) first = rank;
  }
  if (giver && abstainer)
    argument{"combine", "topk_weights"}.refuse(errc::mismatch, "was given on ", *giver,
                                               " but not on ", *abstainer,
                                               ", expected on all ranks or on none");
}

}  // namespace peerbus::deep_ep::detail
