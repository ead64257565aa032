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

/// How far NUMA nodes are from each other, in the firmware's units (10 is local). Empty where it
/// does not say.
struct node_distances {
  std::vector<std::uint32_t> nodes;
  std::vector<std::uint64_t> values;  ///< [from][to], in the order of `nodes`

  /// 0 if not known.
  [[nodiscard]] std::uint64_t between(std::uint32_t from, std::uint32_t to) const {
    const auto row = std::find(nodes.begin(), nodes.end(), from);
    const auto column = std::find(nodes.begin(), nodes.end(), to);
    if (row == nodes.end() || column == nodes.end()) return 0;
    return values[static_cast<std::size_t>(row - nodes.begin()) * nodes.size() +
                  static_cast<std::size_t>(column - nodes.begin())];
  }
};

/// Sorts peers by how far they are; members in the order of weight.
struct peer_distance {
  enum class shared : std::uint8_t { l3, node, nothing };
  shared common = shared::nothing;
  std::uint64_t nodes_apart = 0;
  bool other_package = false;

  friend auto operator<=>(const peer_distance&, const peer_distance&) = default;
};

[[nodiscard]] inline peer_distance distance(const cpu_place& from, const cpu_place& to,
                                            const node_distances& nodes) {
  if (same_known(from.l3, to.l3)) return {.common = peer_distance::shared::l3};
  if (same_known(from.node, to.node)) return {.common = peer_distance::shared::node};
  return {.common = peer_distance::shared::nothing,
          .nodes_apart = nodes.between(from.node, to.node),
          .other_package = !same_known(from.package, to.package)};
}

/// The other ranks in the order in which `self` should visit them, given the place of each rank:
/// those that share an L3 cache first, then those of the same NUMA node, then the others by the
/// distance of their nodes, where it is known, and those of the same package first.
///
/// Those at one distance come in the order self + 1, self + 2, … round. The ranks of one group
/// would then all begin with the same rank of another group; so each begins as many ranks further
/// on as its group has ranks below it. For groups of equal size every rank is then visited by one
/// other at a time, if all go at one pace.
[[nodiscard]] inline std::vector<rank_id> order_peers(rank_id self,
                                                      std::span<const cpu_place> places,
                                                      const node_distances& nodes) {
  struct peer {
    peer_distance away;
    rank_id rank;
  };
  std::vector<peer> peers;
  for (std::size_t step = 1; step < places.size(); ++step) {
    const rank_id rank{(self.index() + step) % places.size()};
    peers.push_back({distance(places[self.index()], places[rank.index()], nodes), rank});
  }
  std::stable_sort(peers.begin(), peers.end(),
                   [](const peer& a, const peer& b) { return a.away < b.away; });

  std::size_t below = 0;  // Nearer ranks with a lower number than `self`.
  for (auto begin = peers.begin(); begin != peers.end();) {
    const auto end =
        std::find_if(begin, peers.end(), [&](const peer& one) { return one.away != begin->away; });
    const auto nearer_below = static_cast<std::size_t>(
        std::count_if(begin, end, [&](const peer& one) { return one.rank < self; }));
    const auto turn = below % static_cast<std::size_t>(end - begin);
    std::rotate(begin, begin + static_cast<std::ptrdiff_t>(turn), end);
    below += nearer_below;
    begin = end;
  }

  std::vector<rank_id> order;
  order.reserve(peers.size());
  for (const peer& one : peers) order.push_back(one.rank);
  return order;
}

}  // namespace peerbus::topology
