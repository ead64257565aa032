// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail::rdma {

/// Returns the order in which to try devices for a rank on NUMA node `own`: first devices on that
/// node, then on other nodes, then on an unknown node (-1). Within each group, and if `own` is
/// unknown, the order of `nodes` stays.
inline std::vector<std::size_t> nearest_first(const std::vector<int>& nodes, int own) {
  std::vector<std::size_t> order(nodes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (own < 0) return order;
  const auto distance = [&](std::size_t i) {
    if (nodes[i] < 0) return 2;
    return nodes[i] == own ? 0 : 1;
  };
  std::ranges::sort(order, {}, [&](std::size_t i) { return std::pair{distance(i), i}; });
  return order;
}

/// Returns the NUMA node of a device, from its directory in sysfs. -1 if it has none.
inline int numa_node_of(const std::string& directory) {
  int node = -1;
  std::ifstream file{directory + "/device/numa_node"};
  return file >> node ? node : -1;
}

/// Returns the NUMA node of the core on which the calling thread runs. -1 if it is unknown.
inline int own_numa_node() noexcept {
  unsigned core = 0;
  unsigned node = 0;
  return ::getcpu(&core, &node) == 0 ? static_cast<int>(node) : -1;
}

}  // namespace peerbus::detail::rdma
