// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/relay.hpp>

namespace peerbus::moe {

PEERBUS_INLINE relay_costs relay_costs_of(const cost_table& table) {
  const relay_costs assumed;
  return {table.find("moe.relay.far_byte_ns").value_or(assumed.far_byte_ns),
          table.find("moe.relay.near_byte_ns").value_or(assumed.near_byte_ns),
          table.find("moe.relay.hop_us").value_or(assumed.hop_us)};
}

PEERBUS_INLINE std::string describe(const relay_choice& choice) {
  const relay_estimate& found = choice.estimate;
  return peerbus::detail::concat(
      "relay ", describe(choice.asked), ": ", choice.relays ? "two levels" : "one level", ", ",
      choice.why, "; ", choice.groups, choice.groups == 1 ? " group" : " groups",
      "; expected copies of a token that cross: ", found.copies.by_expert, " by expert, ",
      found.copies.by_rank, " by rank, ", found.copies.by_group,
      " by group; far bytes of a token: ", found.far_bytes_flat, " with one level, ",
      found.far_bytes_relay, " with two; us of a full batch: ", found.flat_us, " and ",
      found.relay_us);
}

}  // namespace peerbus::moe
