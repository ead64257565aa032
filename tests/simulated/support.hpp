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

/// Ranks of a simulation, `Orders` times: in order, then with random delays that are short, then
/// long compared with the latency of the network. A sanitizer sees each line in one order, which is
/// the second.
template <peerbus::transport Transport, std::uint64_t Orders>
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
      worst = std::max(worst, peerbus::run_simulated(ranks, f, delayed(jitter, order + ranks)));
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
