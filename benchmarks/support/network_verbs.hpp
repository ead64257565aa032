// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/transport/verbs.hpp>

#include "support/network_options.hpp"

namespace bench {

/// Returns what `verbs` is made with.
[[nodiscard]] inline peerbus::verbs_options verbs_options_of(const network_options& chosen) {
  peerbus::verbs_options with;
  with.device = chosen.device;
  if (chosen.gid_index) with.gid_index = static_cast<int>(*chosen.gid_index);
  with.queue_pairs_per_peer = static_cast<decltype(with.queue_pairs_per_peer)>(chosen.queue_pairs);
  return with;
}

}  // namespace bench
