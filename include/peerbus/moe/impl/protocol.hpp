// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/protocol.hpp>

namespace peerbus::moe {

PEERBUS_INLINE protocol_estimate estimate_protocols(const cost_table& costs,
                                                    const dispatch_size& size) {
  const auto cost = [&](std::string_view name, double assumed) {
    const auto found = costs.find(peerbus::detail::concat("moe.", size.road, ".", name));
    return found.value_or(assumed);
  };
  // docs/performance.md explains the assumed costs: measured over shared memory, and for a network
  // those of a message of some microseconds. There a row in slots is a put of its own, while the
  // rows of neighbouring blocks often leave together.
  const bool is_direct = size.road == "direct";
  const double round_us = cost("counts_round_us", is_direct ? 1.4 : 5.0);
  const double rank_us = cost("counts_rank_us", is_direct ? 0.2 : 0.5);
  const double row_us = cost("slot_row_us", is_direct ? 0.04 : 0.3);
  const double kib_us = cost("slot_kib_us", 0);
  const double peers = size.ranks == 0 ? 0 : static_cast<double>(size.ranks - 1);
  return {round_us + rank_us * peers, size.rows * (row_us + kib_us * size.row_kib)};
}

}  // namespace peerbus::moe
