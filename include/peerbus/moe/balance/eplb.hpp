// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/core/compiled.hpp>
#include <peerbus/moe/balance/slot_plan.hpp>

namespace peerbus::moe {

/// The numbers that EPLB's algorithms take besides the loads.
struct eplb_shape {
  std::size_t slots = 0;   ///< physical experts of all ranks; EPLB's num_replicas
  std::size_t groups = 1;  ///< groups of consecutive experts; EPLB's num_groups
  std::size_t nodes = 1;   ///< machines with a fast network inside; EPLB's num_nodes
  std::size_t ranks = 1;   ///< EPLB's num_gpus
};

/// Plans one layer by DeepSeek's algorithm EPLB. If `nodes` divides `groups`, the algorithm is
/// hierarchical: each group of experts stays inside one node, in which its experts are replicated
/// and packed. Otherwise it is global: groups and nodes have no influence. `loads` is [experts].
/// EPLB may give two slots of a rank to one expert; `plan_spread` never does.
///
/// The tables are equal to those of the published eplb.py with a stable sort, because the
/// arithmetic is the same, in float32, and so are ties: the first of equal experts is replicated,
/// equal loads are packed in the order of their numbers, and the first of equally loaded ranks
/// takes the next replica. The published file sorts more than 16 equal loads in an order that torch
/// leaves open, so that replicas of one expert may change places there. Group loads that are not
/// integers may differ in the last bit, because torch leaves the order of its sums open too.
///
/// Throws: `error` invalid_argument if a load is negative or not finite, or unless `groups` divides
/// the experts (hierarchical algorithm only), `nodes` divides the ranks, `ranks` divides the
/// slots, and there are as many slots as experts or more.
///
/// Cost: allocates; about (slots + experts) x log(slots) steps. docs/balancing.md has times.
///
/// Threads: any; the result depends on the arguments only.
[[nodiscard]] slot_plan plan_eplb(std::span<const double> loads, const eplb_shape& shape);

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/balance/eplb.ipp>  // IWYU pragma: keep
#endif
