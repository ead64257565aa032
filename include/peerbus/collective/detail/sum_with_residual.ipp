// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/collective/detail/sum_with_residual.hpp>
#include <peerbus/collective/detail/team_access.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE sum_with_residual::sum_with_residual(team& team, const reducer& sum,
                                                    const request& given) noexcept
    : add{sum},
      input{given.input.data()},
      residual{given.residual->data()},
      sources{team_access::sources(team)},
      self{team.rank()} {}

PEERBUS_INLINE void sum_with_residual::combine(const void* callable, std::byte* out,
                                               std::span<const std::byte* const> ranks,
                                               std::size_t first, std::size_t elements) noexcept {
  const auto& fused = *static_cast<const sum_with_residual*>(callable);
  const std::byte* const added = fused.residual + (ranks[fused.self.index()] - fused.input);
  // Lanes that reduce at the same time find it set: see `reduce_by_lanes`.
  if (fused.sources.back() != added) fused.sources.back() = added;
  fused.add.part(out, fused.sources, first, elements);
}

}  // namespace peerbus::collective::detail
