// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <peerbus/transport/simulated/links.hpp>
#include <peerbus/transport/simulated/platform.hpp>

namespace peerbus {

/// Options of a simulation.
struct simulation_options {
  simulated_platform platform{};  ///< the machine
  std::uint64_t seed = 1;         ///< of the random delays
  /// The longest random delay of a message, once before it leaves and once before it is delivered.
  /// Messages then pass each other as far as the contract of `transport` allows. 0: none.
  std::chrono::nanoseconds jitter{0};
  /// Puts and gets of more bytes, and such pieces of a run, are charged and not carried: what they
  /// would overwrite stays as it is. With a limit above all control messages and below rows,
  /// timings of many ranks take little memory. By default everything is carried.
  std::size_t most_carried_bytes = std::numeric_limits<std::size_t>::max();
  /// The stack of a rank. Pages are taken when they are touched.
  std::size_t stack_bytes = std::size_t{1} << 20;
  /// The links that carry messages in place of the platform's ports, or null. They outlive the
  /// simulation.
  simulated_links* links = nullptr;
};

}  // namespace peerbus
