// SPDX-License-Identifier: MIT
#pragma once

#include <optional>

#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/received.hpp>

namespace peerbus::deep_ep::detail {

/// Requires that weights came home from all ranks in the combine of a batch, or from none.
/// Throws, on all ranks: `error` mismatch that names a rank with weights and a rank without.
template <class Exchange>
void require_weights_from_all_or_none(Exchange& moe, const moe::ticket& combined, all_ranks ranks) {
  std::optional<rank_id> with;
  std::optional<rank_id> without;
  for (const rank_id rank : ranks) {
    std::optional<rank_id>& first = moe.attached_by(combined, rank) ? with : without;
    if (!first) first = rank;
  }
  if (with && without)
    argument{"combine", "topk_weights"}.refuse(errc::mismatch, "was given on ", *with,
                                               " but not on ", *without,
                                               ", expected on all ranks or on none");
}

}  // namespace peerbus::deep_ep::detail
