// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include <peerbus/transport/verbs.hpp>

#include "support/network_options.hpp"

namespace bench {

/// Returns what `verbs` is made with.
[[nodiscard]] inline peerbus::verbs_options verbs_options_of(const network_options& chosen) {
  peerbus::verbs_options with;
  for (std::size_t begin = 0; begin < chosen.device.size();) {  // "rxe0,rxe1" names two.
    const std::size_t end = std::min(chosen.device.find(',', begin), chosen.device.size());
    with.devices.push_back(chosen.device.substr(begin, end - begin));
    begin = end + 1;
  }
  if (with.devices.size() == 1) {
    with.device = with.devices.front();
    with.devices.clear();
  }
  if (chosen.gid_index) with.gid_index = static_cast<int>(*chosen.gid_index);
  with.queue_pairs_per_peer =
      static_cast<decltype(with.queue_pairs_per_peer)>(chosen.queue_pairs.value_or(1));
  return with;
}

}  // namespace bench
