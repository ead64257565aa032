// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ratio>
#include <vector>

namespace peerbus {

/// The links of a simulation, in place of the ports of `simulated_platform`: for instance, another
/// simulator of networks. They decide how long the bytes of messages take, and which messages slow
/// others down. A rank's own costs and the latency of a level stay with the simulation.
///
/// Calls: by the thread of `run_simulated`, on its own stack and never on the stack of a rank.
/// Between `begin` and the end of the simulation, times never decrease. The exception is after an
/// `advance` until the end of time in which nothing under way arrives.
///
/// Ordering: messages may arrive in any order. Signals still follow the puts before them.
class simulated_links {
 public:
  /// A time since the simulation began.
  using time = std::chrono::duration<std::int64_t, std::pico>;

  /// A message between two different ranks.
  struct message {
    std::uint32_t number = 0;  ///< identifies the message until it arrives
    std::uint32_t from = 0;    ///< the rank that sends it
    std::uint32_t to = 0;      ///< the rank that receives it
    std::size_t requests = 1;  ///< number of pieces in the message, at least 1
    std::size_t bytes = 0;     ///< size of all pieces
  };

  simulated_links() = default;
  simulated_links(const simulated_links&) = delete;
  simulated_links& operator=(const simulated_links&) = delete;

  /// Begins a simulation of `ranks` ranks, at time 0. No message is under way.
  /// Throws: `error` if the links cannot connect `ranks` ranks; `run_simulated` throws it then.
  virtual void begin(std::size_t ranks) = 0;
  /// Begins to carry the message `started`, whose first byte would reach the receiver at `now`. If
  /// messages are under way, the latest `advance` returned `now`.
  virtual void start(const message& started, time now) noexcept = 0;
  /// Lets time go by until messages arrive, but not beyond `until`. Messages are under way. Appends
  /// the numbers of the arriving messages to `arrived`, which is empty. If no message under way
  /// will ever arrive, waits for these messages time out.
  /// Returns: the time at which the messages arrive, or `until` if none arrives by then.
  [[nodiscard]] virtual time advance(time until, std::vector<std::uint32_t>& arrived) noexcept = 0;

 protected:
  ~simulated_links() = default;
};

}  // namespace peerbus
