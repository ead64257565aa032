// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/expert_map.hpp>

namespace peerbus::moe::detail {

/// Returns the error in `experts_of_rank`, `physical_to_logical` or `replicas` of `config` for
/// `ranks` ranks, if any. `config.experts` must be possible. `doing` begins the text.
std::optional<error> objection_to_experts(std::string_view doing, const exchange_config& config,
                                          std::size_t ranks);

/// Returns the error of `objection_to_experts` for experts that take the places of those of
/// `present`, or an error if `config.physical_to_logical` has another number of entries.
std::optional<error> objection_to_new_places(std::string_view doing, const exchange_config& config,
                                             const expert_map& present);

/// Returns whether any of `ranks` ranks has another number of physical experts than if the logical
/// experts were divided equally. `config` has been checked.
[[nodiscard]] constexpr bool is_other_than_dealt(const exchange_config& config,
                                                 std::size_t ranks) noexcept {
  const expert_placement places = placement_of(config, ranks);
  const expert_placement dealt{config.experts, ranks};
  if (places.experts() != dealt.experts()) return true;
  for (const rank_id rank : all_ranks{ranks})
    if (places.count(rank) != dealt.count(rank)) return true;
  return false;
}

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/plan/check_experts.ipp>  // IWYU pragma: keep
#endif
