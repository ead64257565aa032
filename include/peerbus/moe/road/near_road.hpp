// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator/rank_subset.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/road/direct_road.hpp>
#include <peerbus/moe/road/road_over.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::moe {

namespace detail {

/// Marks the ranks of one group of near ranks, as a subset of all ranks.
struct near_ranks_tag {};
/// Marks the ranks that have the same place in all groups of near ranks.
struct column_tag {};

}  // namespace detail

/// The road among near ranks of a transport that also has far ones. It is `direct_road`, without
/// the memory that a road to far ranks needs. Outputs lie at the expert, because rows that are
/// handed on name their first home and not the rank that hands them on.
template <token_codec Codec>
class near_road : public direct_road<Codec> {
 public:
  /// No staging, and outputs at the expert.
  static constexpr road_memory needs{.stages = false, .outputs_may_be_home = false};

  /// Makes the road. Keeps a reference to `map`.
  using direct_road<Codec>::direct_road;
};

/// The road of an exchange among the ranks of one group of near ranks.
template <partly_direct_transport Whole, token_codec Codec>
struct road_over<peerbus::detail::rank_subset<Whole, detail::near_ranks_tag>, Codec> {
  /// Rows are stored, at all peers.
  using type = near_road<Codec>;
};

}  // namespace peerbus::moe
