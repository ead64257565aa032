// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <utility>

#include <peerbus/moe/balance/slot_plan.hpp>
#include <peerbus/moe/config.hpp>

namespace peerbus::moe {

namespace detail {

/// Returns where the slots of each expert begin in a list sorted by expert, and the end.
inline std::vector<std::uint32_t> slot_begins(std::span<const std::uint32_t> physical_to_logical,
                                              std::size_t expert_count) {
  std::vector<std::uint32_t> begins(expert_count + 1);
  for (const std::uint32_t expert : physical_to_logical)
    if (expert < expert_count) ++begins[expert + 1];  // `vacant` is above all.
  for (std::size_t e = 0; e < expert_count; ++e) begins[e + 1] += begins[e];
  return begins;
}

}  // namespace detail

PEERBUS_INLINE slot_plan::slot_plan(std::vector<std::uint32_t> physical_to_logical,
                                    std::size_t expert_count,
                                    std::span<const std::uint32_t> replica_of_slot)
    : physical_to_logical_{std::move(physical_to_logical)},
      slots_(physical_to_logical_.size()),
      begins_{detail::slot_begins(physical_to_logical_, expert_count)} {
  for (std::uint32_t s = 0; s < physical_to_logical_.size(); ++s)
    if (physical_to_logical_[s] != vacant)
      slots_[begins_[physical_to_logical_[s]] + replica_of_slot[s]] = s;
  slots_.resize(begins_.back());
}

PEERBUS_INLINE slot_plan::slot_plan(std::vector<std::uint32_t> physical_to_logical,
                                    std::size_t expert_count)
    : physical_to_logical_{std::move(physical_to_logical)},
      slots_(physical_to_logical_.size()),
      begins_{detail::slot_begins(physical_to_logical_, expert_count)} {
  std::vector<std::uint32_t> next{begins_};
  for (std::uint32_t s = 0; s < physical_to_logical_.size(); ++s)
    if (physical_to_logical_[s] != vacant) slots_[next[physical_to_logical_[s]]++] = s;
  slots_.resize(begins_.back());
}

PEERBUS_INLINE std::size_t slot_plan::most_replicas() const noexcept {
  std::size_t most = 0;
  for (std::size_t e = 0; e < experts(); ++e) most = std::max(most, replica_count(e));
  return most;
}

}  // namespace peerbus::moe
