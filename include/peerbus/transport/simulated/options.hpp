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
  std::uint64_t seed = 1;         ///< seed of the random delays
  /// The longest random delay of a message, once before it leaves and once before it is delivered.
  /// Messages then pass each other where the contract of `transport` allows it. 0: no delay.
  std::chrono::nanoseconds jitter{0};
  /// The largest put, get or piece of a run that is carried, in bytes. Larger puts, gets and pieces
  /// are charged but not carried: the memory that they would overwrite stays as it is. If the limit
  /// is above all control messages and below rows, timings of many ranks take little memory. By
  /// default everything is carried.
  std::size_t most_carried_bytes = std::numeric_limits<std::size_t>::max();
  /// The size of a rank's stack, in bytes, at least 64 KiB. Pages are committed when they are
  /// touched.
  std::size_t stack_bytes = std::size_t{1} << 20;
  /// The links that carry messages in place of the platform's ports, or null. They must outlive the
  /// simulation.
  simulated_links* links = nullptr;
};

}  // namespace peerbus
