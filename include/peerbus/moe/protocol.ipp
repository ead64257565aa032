// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/core/text.hpp>
#include <peerbus/moe/protocol.hpp>

namespace peerbus::moe {

PEERBUS_INLINE protocol_estimate estimate_protocols(const cost_table& costs,
                                                    const dispatch_size& size) {
  const auto cost = [&](std::string_view name, double assumed) {
    const auto found = costs.find(peerbus::detail::concat("moe.", size.path, ".", name));
    return found.value_or(assumed);
  };
  const detail::protocol_costs assumed = detail::assumed_costs(size.path);
  return detail::estimate_from(
      {cost("counts_round_us", assumed.round_us), cost("counts_rank_us", assumed.rank_us),
       cost("slot_row_us", assumed.row_us), cost("slot_kib_us", assumed.kib_us)},
      size);
}

}  // namespace peerbus::moe
