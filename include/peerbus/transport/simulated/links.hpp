// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ratio>
#include <vector>

namespace peerbus {

/// Decides how long the bytes of messages take and which messages slow down which, in place of the
/// ports of `simulated_platform`: another simulator of networks, for instance. What a rank itself
/// does and the latency of a level stay with the simulation.
///
/// Calls: by the thread of `run_simulated`, on its own stack and never on that of a rank. Between
/// `begin` and the end of the simulation, times never decrease, but after an `advance` until the
/// end of time, when nothing under way arrives.
///
/// Ordering: messages may arrive in any order. Signals still follow the puts before them.
class simulated_links {
 public:
  /// A time since the simulation began.
  using time = std::chrono::duration<std::int64_t, std::pico>;

  /// A message between two ranks, which differ.
  struct message {
    std::uint32_t number = 0;  ///< its name until it arrives
    std::uint32_t from = 0;    ///< the rank that sends it
    std::uint32_t to = 0;      ///< the rank that receives it
    std::size_t requests = 1;  ///< the pieces that it consists of, at least 1
    std::size_t bytes = 0;     ///< of all pieces
  };

  simulated_links() = default;
  simulated_links(const simulated_links&) = delete;
  simulated_links& operator=(const simulated_links&) = delete;

  /// Begins a simulation of so many ranks, at time 0. No message is under way.
  /// Throws: `error` if it has no links for so many; `run_simulated` throws it then.
  virtual void begin(std::size_t ranks) = 0;
  /// Begins to carry a message whose first byte would reach the receiver at `now`. If messages are
  /// under way, the latest `advance` returned `now`.
  virtual void start(const message& started, time now) noexcept = 0;
  /// Lets time go by until messages arrive, but not beyond `until`. Messages are under way. Appends
  /// the numbers of those that arrive to `arrived`, which is empty. If none of those under way will
  /// ever arrive, waits for them time out.
  /// Returns: when they arrive, or `until` if none does until then.
  [[nodiscard]] virtual time advance(time until, std::vector<std::uint32_t>& arrived) noexcept = 0;

 protected:
  ~simulated_links() = default;
};

}  // namespace peerbus
