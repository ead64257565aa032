// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

/// The machines that `simulated` plays. Rates are in GB/s, that is bytes per nanosecond, and times
/// in nanoseconds.
namespace peerbus {

/// A network card, or a rank's connection to a bus. It sends one message at a time and receives one
/// message at a time.
struct simulated_port {
  std::string name;       ///< for messages
  std::size_t ranks = 1;  ///< consecutive ranks that share one such card
};

/// A level of the network: the links between ranks that share a group of this level and none of a
/// lower level.
struct simulated_level {
  std::string name;       ///< such as "node"; for messages
  std::size_t ranks = 0;  ///< consecutive ranks that are a group of this level; 0: all ranks
  double latency_ns = 0;  ///< from the first byte at the sender to the first at the receiver
  double gb_per_s = 0;    ///< of a port while it carries a message of this level
  double message_ns = 0;  ///< for which a message keeps a port busy besides its bytes
  std::size_t port = 0;   ///< the index in `simulated_platform::ports`
};

/// The time that a rank itself takes, during which it does nothing else.
struct simulated_costs {
  double put_ns = 0;     ///< for each put or get, and each piece of a run
  double signal_ns = 0;  ///< for each signal raised
  double poll_ns = 20;   ///< for each signal looked at, at least 1
  double token_ns = 0;   ///< for each token that a `charged` codec encodes
  /// The rate at which it stores or loads rows itself, to and from near ranks and its own memory.
  /// 0: this takes it no time, as if an engine did it.
  double copy_gb_per_s = 0;
};

/// A machine as a cost model: LogGP with a gap for messages and bytes at either end, where several
/// ranks may share a port. A message occupies the port of its sender and, `latency_ns` after it has
/// begun to leave, that of its receiver; messages that find a port busy wait. Nothing contends
/// between the ports.
struct simulated_platform {
  std::string name = "one switch";                 ///< for messages
  std::vector<simulated_port> ports{{"port", 1}};  ///< the kinds of ports
  /// The levels, from the smallest groups to the largest, each a multiple of the one before. The
  /// last level connects all ranks.
  std::vector<simulated_level> levels{{"network", 0, 1000, 25, 10, 0}};
  /// How many of the levels, from the first on, connect ranks that load and store each other's
  /// memory: near ranks, among which an exchange with `relay` hands rows on. 0: ranks only put.
  std::size_t near_levels = 0;
  simulated_costs costs{};  ///< of a rank

  /// Returns the index of the first level of which two ranks share a group.
  [[nodiscard]] std::size_t shared_level(std::size_t rank, std::size_t other) const noexcept {
    std::size_t level = 0;
    while (level + 1 < levels.size() && rank / levels[level].ranks != other / levels[level].ranks)
      ++level;
    return level;
  }
};

}  // namespace peerbus
