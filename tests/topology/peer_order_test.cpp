// SPDX-License-Identifier: MIT
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/rank.hpp>
#include <peerbus/topology/choose_cpus.hpp>
#include <peerbus/topology/cpu_place.hpp>
#include <peerbus/topology/machine.hpp>
#include <peerbus/topology/peer_order.hpp>

namespace peer_order_test {

namespace {

using peerbus::rank_id;
using peerbus::topology::choose_cpus;
using peerbus::topology::cpu_place;
using peerbus::topology::machine;
using peerbus::topology::node_distances;
using indices = std::vector<std::size_t>;

indices order(std::size_t self, const std::vector<cpu_place>& places,
              const node_distances& nodes = {}) {
  indices result;
  for (const rank_id peer : peerbus::topology::order_peers(rank_id{self}, places, nodes))
    result.push_back(peer.index());
  return result;
}

std::vector<cpu_place> on_nodes(const std::vector<std::uint32_t>& nodes) {
  std::vector<cpu_place> places;
  for (const std::uint32_t node : nodes) places.push_back({.node = node});
  return places;
}

}  // namespace

TEST_CASE("a rank alone visits nobody") { CHECK(order(0, {{}}).empty()); }

TEST_CASE("without any knowledge the order is the next rank round") {
  CHECK(order(2, std::vector<cpu_place>(5)) == indices{3, 4, 0, 1});
}

TEST_CASE("the same L3 comes before the same node, and that before the others") {
  const std::vector<cpu_place> places{{.l3 = 0, .node = 0, .package = 0},
                                      {.l3 = 9, .node = 1, .package = 9},
                                      {.l3 = 4, .node = 0, .package = 0},
                                      {.l3 = 0, .node = 0, .package = 0},
                                      {.l3 = 7, .node = 2, .package = 0}};
  CHECK(order(0, places) == indices{3, 2, 4, 1});
  CHECK(order(3, places) == indices{0, 2, 4, 1});
}

TEST_CASE("nodes come by their distances, which need not be the same both ways") {
  const node_distances nodes{{0, 1, 2}, {10, 32, 12, 11, 10, 40, 12, 32, 10}};
  const auto places = on_nodes({0, 1, 2});
  CHECK(order(0, places, nodes) == indices{2, 1});
  CHECK(order(1, places, nodes) == indices{0, 2});
  CHECK(order(2, places, nodes) == indices{0, 1});
}

TEST_CASE("every order is a permutation of the others, whatever the places") {
  const machine where = machine::synthetic("package:2 numa:2 l3:2 core:2 pu:2");
  for (std::size_t ranks = 1; ranks <= 32; ++ranks) {
    const auto places = choose_cpus(where.cpus(), ranks);
    for (std::size_t self = 0; self < ranks; ++self) {
      const auto visited = order(self, places, where.distances());
      CHECK(visited.size() == ranks - 1);
      const std::set<std::size_t> different(visited.begin(), visited.end());
      CHECK(different.size() == ranks - 1);
      CHECK(different.count(self) == 0);
      CHECK((different.empty() || *different.rbegin() < ranks));
    }
  }
}

TEST_CASE("in equal groups no two ranks visit the same peer in the same step") {
  const machine where = machine::synthetic("package:2 numa:2 l3:2 core:2 pu:1");
  for (const std::size_t ranks : {4U, 8U, 16U}) {
    const auto places = choose_cpus(where.cpus(), ranks);
    std::vector<indices> orders;
    for (std::size_t self = 0; self < ranks; ++self)
      orders.push_back(order(self, places, where.distances()));
    for (std::size_t step = 0; step + 1 < ranks; ++step) {
      std::set<std::size_t> visited;
      for (const indices& peers : orders) visited.insert(peers[step]);
      CHECK_MESSAGE(visited.size() == ranks, ranks, " ranks, step ", step);
    }
  }
}

TEST_CASE("ranks of one node do not all begin with the same rank of the other") {
  const auto places = on_nodes({0, 0, 0, 1, 1, 1});
  CHECK(order(0, places) == indices{1, 2, 3, 4, 5});
  CHECK(order(1, places) == indices{2, 0, 4, 5, 3});
  CHECK(order(2, places) == indices{0, 1, 5, 3, 4});
}

}  // namespace peer_order_test
