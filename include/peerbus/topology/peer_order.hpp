// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/rank.hpp>
#include <peerbus/topology/cpu_place.hpp>

namespace peerbus::topology {

/// The distances between NUMA nodes in the firmware's units (10 is local). Empty if the firmware
/// does not report them.
struct node_distances {
  std::vector<std::uint32_t> nodes;   ///< the system's numbers
  std::vector<std::uint64_t> values;  ///< [source][destination], in the order of `nodes`

  /// Returns the distance from one node to another, or 0 if it is not known.
  [[nodiscard]] std::uint64_t between(std::uint32_t source, std::uint32_t destination) const {
    const auto row = std::find(nodes.begin(), nodes.end(), source);
    const auto column = std::find(nodes.begin(), nodes.end(), destination);
    if (row == nodes.end() || column == nodes.end()) return 0;
    return values[static_cast<std::size_t>(row - nodes.begin()) * nodes.size() +
                  static_cast<std::size_t>(column - nodes.begin())];
  }
};

/// The distance of a peer. Distances compare by their members. The first member weighs most.
struct peer_distance {
  /// The smallest part of the machine that a rank and its peer share.
  enum class shared : std::uint8_t {
    l3,      ///< a third-level cache
    node,    ///< a NUMA node, but no third-level cache
    nothing  ///< neither of them, or it is not known
  };
  shared common = shared::nothing;  ///< the part that both share; weighs most
  std::uint64_t nodes_apart = 0;    ///< the distance of the nodes; 0 if they are the same or it is
                                    ///< not known
  bool other_package = false;       ///< whether the packages differ or are unknown; false also if a
                                    ///< cache or node is shared

  friend auto operator<=>(const peer_distance&, const peer_distance&) = default;
};

/// Returns the distance from one place to another. Members that are unknown count as not shared.
[[nodiscard]] inline peer_distance distance(const cpu_place& source, const cpu_place& destination,
                                            const node_distances& nodes) {
  if (same_known(source.l3, destination.l3)) return {.common = peer_distance::shared::l3};
  if (same_known(source.node, destination.node)) return {.common = peer_distance::shared::node};
  return {.common = peer_distance::shared::nothing,
          .nodes_apart = nodes.between(source.node, destination.node),
          .other_package = !same_known(source.package, destination.package)};
}

/// Returns the other ranks in the order in which `self` should visit them. `places` has the place
/// of each rank, by rank. Peers that share an L3 cache come first, then peers of the same NUMA
/// node. The remaining peers follow by the distance of their nodes, if it is known. At equal
/// distance, peers of the same package come first.
///
/// Peers at the same distance come in the order self + 1, self + 2, … and wrap around. All ranks of
/// one group would then begin with the same rank of another group. Therefore each rank begins
/// further on, by the number of ranks in its own group that have lower numbers. If groups have
/// equal sizes and all ranks proceed at one pace, every rank is then visited by a single rank at a
/// time.
/// Cost: sorts the peers. No communication.
[[nodiscard]] inline std::vector<rank_id> order_peers(rank_id self,
                                                      std::span<const cpu_place> places,
                                                      const node_distances& nodes) {
  struct peer {
    peer_distance away;
    std::size_t step;
    rank_id rank;
  };
  std::vector<peer> peers;
  for (std::size_t step = 1; step < places.size(); ++step) {
    const rank_id rank{(self.index() + step) % places.size()};
    peers.push_back({distance(places[self.index()], places[rank.index()], nodes), step, rank});
  }
  std::sort(peers.begin(), peers.end(), [](const peer& a, const peer& b) {
    return a.away != b.away ? a.away < b.away : a.step < b.step;
  });

  std::size_t below = 0;  // The number of nearer ranks with a lower number than `self`.
  for (auto begin = peers.begin(); begin != peers.end();) {
    const auto end = std::find_if(
        begin, peers.end(), [&](const peer& candidate) { return candidate.away != begin->away; });
    const auto group_below = static_cast<std::size_t>(
        std::count_if(begin, end, [&](const peer& candidate) { return candidate.rank < self; }));
    const auto turn = below % static_cast<std::size_t>(end - begin);
    std::rotate(begin, begin + static_cast<std::ptrdiff_t>(turn), end);
    below += group_below;
    begin = end;
  }

  std::vector<rank_id> order;
  order.reserve(peers.size());
  for (const peer& next : peers) order.push_back(next.rank);
  return order;
}

}  // namespace peerbus::topology
