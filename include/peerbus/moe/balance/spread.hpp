// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/core/compiled.hpp>
#include <peerbus/moe/balance/slot_plan.hpp>

namespace peerbus::moe {

/// The slots that `plan_spread` fills.
struct spread_shape {
  std::size_t ranks = 1;           ///< ranks of the group
  std::size_t slots_per_rank = 0;  ///< physical experts of each rank
};

/// Plans one layer so that no rank holds an expert twice, and rank loads are as equal as a search
/// finds. The plan does not depend on where experts are now. `loads` is [experts]. Replicas go to
/// the experts with the largest load per replica, as with EPLB, but no more than there are ranks.
/// Then slots exchange experts while the hottest rank becomes lighter.
///
/// Throws: `error` invalid_argument if a load is negative or not finite, or unless each expert can
/// have a slot and all slots can be filled: experts <= slots <= experts x ranks, and
/// `slots_per_rank` <= experts.
///
/// Cost: allocates ranks x experts bytes; docs/balancing.md has times.
///
/// Threads: any; the result depends on the arguments only, and is the same on all machines.
[[nodiscard]] slot_plan plan_spread(std::span<const double> loads, const spread_shape& shape);

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/balance/spread.ipp>  // IWYU pragma: keep
#endif
