// SPDX-License-Identifier: MIT
#pragma once

#include <optional>

#include <peerbus/core/text.hpp>
#include <peerbus/moe/protocol.hpp>

namespace peerbus::moe {

namespace detail {

/// A member of `protocol_costs` with its name in tables.
struct named_protocol_cost {
  std::string_view name;
  double protocol_costs::* member;
};
inline constexpr named_protocol_cost named_protocol_costs[] = {
    {"counts_round_us", &protocol_costs::round_us},
    {"counts_rank_us", &protocol_costs::rank_us},
    {"slot_row_us", &protocol_costs::row_us},
    {"slot_kib_us", &protocol_costs::kib_us}};

inline std::optional<double> find_cost(const cost_table& costs, std::string_view path,
                                       const named_protocol_cost& cost) {
  return costs.find(peerbus::detail::concat("moe.", path, ".", cost.name));
}

PEERBUS_INLINE bool has_protocol_costs(const cost_table& costs, std::string_view path) {
  for (const named_protocol_cost& cost : named_protocol_costs)
    if (find_cost(costs, path, cost)) return true;
  return false;
}

}  // namespace detail

PEERBUS_INLINE protocol_estimate estimate_protocols(const cost_table& costs,
                                                    const dispatch_size& size) {
  detail::protocol_costs found = detail::assumed_costs(size.path);
  for (const detail::named_protocol_cost& cost : detail::named_protocol_costs)
    found.*cost.member = detail::find_cost(costs, size.path, cost).value_or(found.*cost.member);
  return detail::estimate_from(found, size);
}

}  // namespace peerbus::moe
