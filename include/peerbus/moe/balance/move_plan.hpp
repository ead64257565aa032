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
  std::uint32_t from;    ///< the physical expert to copy, in the map before the round
  std::uint32_t to;      ///< the physical expert that becomes the copy
  friend bool operator==(const expert_move&, const expert_move&) = default;
};

/// One step from one map of experts to another: the copies to make, and the map after them.
struct move_round {
  std::vector<expert_move> moves;                  ///< the copies to make
  std::vector<std::uint32_t> physical_to_logical;  ///< the map after the round
};

/// Returns the rounds after which each rank holds the experts that `wanted`, [physical experts],
/// gives it. `spare` is the number of experts that a rank can take in before it gives up others, at
/// least 1. No more than `spare` change at a rank in each round. After each round every logical
/// expert that was at a living rank is at one, and none is twice at a rank. Experts that stay at
/// their rank keep their physical expert, so that the last map may list the experts of a rank in
/// another order than `wanted`. Experts are copied from living ranks, and first from the ranks that
/// give fewest. At ranks that are gone (`before.gone()`) nothing changes.
///
/// `wanted` must be possible for `before`, as in `exchange::install_experts`.
/// Throws: `error` invalid_argument if `wanted` leaves a logical expert only at ranks that are
/// gone.
/// Cost: allocates; steps in proportion to the changes times the physical experts.
/// Threads: any; the result depends on the arguments only.
[[nodiscard]] std::vector<move_round> plan_moves(const expert_map& before,
                                                 std::span<const std::uint32_t> wanted,
                                                 std::size_t spare);

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/balance/move_plan.ipp>  // IWYU pragma: keep
#endif
