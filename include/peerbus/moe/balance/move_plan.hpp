// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/moe/expert_map.hpp>

namespace peerbus::moe {

/// A copy of a logical expert into another physical expert.
struct expert_move {
  std::uint32_t expert;  ///< the logical expert
  std::uint32_t from;    ///< physical expert that it is copied from, by the map before the round
  std::uint32_t to;      ///< physical expert that stands for it afterwards
  friend bool operator==(const expert_move&, const expert_move&) = default;
};

/// A part of the way from one map of experts to another: what is copied meanwhile, and the map that
/// holds afterwards.
struct move_round {
  std::vector<expert_move> moves;                  ///< what is copied
  std::vector<std::uint32_t> physical_to_logical;  ///< the map afterwards
};

/// Returns the rounds by which each rank comes to hold the experts that `wanted`, [physical
/// experts], gives it. `spare` is the number of experts that a rank can take in before it gives up
/// others, at least 1: so many change at a rank in each round. After each round every logical
/// expert that was at a living rank is at one, and none is twice at a rank. Experts that stay at
/// their rank keep their physical expert, so that the last map may list the experts of a rank in
/// another order than `wanted`. Experts are copied from living ranks, and from those first that
/// give fewest. At ranks that are gone (`before.gone()`) nothing changes.
///
/// `wanted` is possible for `before`, as `exchange::install_experts` has it.
/// Throws: `error` invalid_argument if a logical expert would be at ranks only that are gone.
/// Cost: allocates; steps in proportion to the changes times the physical experts.
/// Threads: any; the result depends on the arguments only.
[[nodiscard]] std::vector<move_round> plan_moves(const expert_map& before,
                                                 std::span<const std::uint32_t> wanted,
                                                 std::size_t spare);

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/balance/move_plan.ipp>  // IWYU pragma: keep
#endif
