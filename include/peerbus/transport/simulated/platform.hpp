// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

/// The machines that `simulated` plays. Rates are in GB/s, that is bytes per nanosecond, and times
/// in nanoseconds.
namespace peerbus {

/// A network card, or a rank's connection to a bus. It sends one message at a time and, at the same
/// time, receives one message at a time.
struct simulated_port {
  std::string name;       ///< name, used in error texts
  std::size_t ranks = 1;  ///< number of consecutive ranks that share one card
};

/// A level of the network: the links between ranks that share a group of this level and none of a
/// lower level.
struct simulated_level {
  std::string name;       ///< such as "node"; used in error texts
  std::size_t ranks = 0;  ///< number of consecutive ranks in a group of this level; 0: all ranks
  double latency_ns = 0;  ///< time from the first byte's departure to its arrival
  double gb_per_s = 0;    ///< rate of a port while it carries a message of this level
  double message_ns = 0;  ///< time that a message occupies a port besides its bytes
  std::size_t port = 0;   ///< the port's index in `simulated_platform::ports`
};

/// The time that a rank itself takes, during which it does nothing else.
struct simulated_costs {
  double put_ns = 0;     ///< time of each put or get, and of each piece of a run
  double signal_ns = 0;  ///< time of raising a signal
  double poll_ns = 20;   ///< time of a look at a signal, at least 1
  double token_ns = 0;   ///< time of each token that a `charged` codec encodes
  /// The rate at which a rank itself stores or loads rows, to and from near ranks and its own
  /// memory. 0: copying rows takes the rank no time, as if an engine did it.
  double copy_gb_per_s = 0;
};

/// A machine as a cost model: LogGP with a gap for messages and bytes at either end, where several
/// ranks may share a port. A message occupies the port of its sender. `latency_ns` after the
/// message has begun to leave, it occupies the port of its receiver. Messages wait for a busy port.
/// Nothing contends between the ports.
struct simulated_platform {
  std::string name = "one switch";                 ///< name, used in error texts
  std::vector<simulated_port> ports{{"port", 1}};  ///< the kinds of ports
  /// The levels, from the smallest groups to the largest. The size of each is a multiple of the
  /// size before. The last level connects all ranks.
  std::vector<simulated_level> levels{{"network", 0, 1000, 25, 10, 0}};
  /// The number of levels, from the first on, whose ranks load and store each other's memory. These
  /// ranks are near ranks, and an exchange with `relay` passes rows on among them. 0: ranks only
  /// put.
  std::size_t near_levels = 0;
  simulated_costs costs{};  ///< the costs of a rank

  /// Returns the index of the first level at which both ranks are in the same group.
  [[nodiscard]] std::size_t shared_level(std::size_t rank, std::size_t other) const noexcept {
    std::size_t level = 0;
    while (level + 1 < levels.size() && rank / levels[level].ranks != other / levels[level].ranks)
      ++level;
    return level;
  }
};

}  // namespace peerbus
