// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/simulated.hpp>

#include "support/ranks.hpp"
#include "support/sanitized.hpp"

namespace simulated_test {

/// A simulation that delays messages by up to `jitter`.
inline peerbus::simulation_options delayed(std::chrono::nanoseconds jitter, std::uint64_t seed) {
  peerbus::simulation_options options;
  options.jitter = jitter;
  options.seed = seed;
  return options;
}

/// Nodes of `ranks` ranks, which are near each other.
inline peerbus::simulation_options nodes_of(std::size_t ranks) {
  peerbus::simulation_options options;
  options.platform = {.name = "nodes",
                      .ports = {{"bus", 1}, {"card", 2}},
                      .levels = {{"node", ranks, 100, 100, 1, 0}, {"network", 0, 1000, 10, 5, 1}},
                      .near_levels = 1};
  return options;
}

/// Ranks of a simulation, `Orders` times: in order, then with random delays that are short, then
/// long compared with the latency of the network. A sanitizer sees each line in one order, which is
/// the second. If `RanksOfNode` is not 0, so many share a node and are near each other.
template <peerbus::transport Transport, std::uint64_t Orders, std::size_t RanksOfNode = 0>
struct simulated_over {
  using transport = Transport;
  static constexpr bool are_threads = true;
  template <class Body>
  static int run(std::size_t ranks, Body body, peerbus::communicator_options options = {}) {
    return start(ranks, test::detail::with_communicator<Transport, Transport>(body, options));
  }
  template <class F>
  static int start(std::size_t ranks, F f) {
    constexpr std::uint64_t first = test::is_sanitized && Orders > 1 ? 1 : 0;
    constexpr std::uint64_t last = test::is_sanitized ? first + 1 : Orders;
    int worst = 0;
    for (std::uint64_t order = first; order < last && worst == 0; ++order) {
      const std::chrono::nanoseconds jitter{order == 0 ? 0 : order % 2 == 1 ? 300 : 20'000};
      peerbus::simulation_options options = delayed(jitter, order + ranks);
      if constexpr (RanksOfNode != 0) options.platform = nodes_of(RanksOfNode).platform;
      worst = std::max(worst, peerbus::run_simulated(ranks, f, options));
    }
    return worst;
  }
  /// Lanes are fibres as well.
  template <class Body>
  static void on_lanes(std::size_t count, Body body) {
    peerbus::simulated::run_lanes(count, body);
  }
};

}  // namespace simulated_test
