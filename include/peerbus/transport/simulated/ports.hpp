// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <peerbus/transport/simulated/platform.hpp>
#include <peerbus/transport/simulated/scheduler.hpp>

namespace peerbus::detail {

/// The times until which the ports of all ranks are busy. Calls of `leave` and of `enter`
/// must come in the order of time. `pass` may be called at any time.
class port_times {
 public:
  port_times(const simulated_platform& platform, std::size_t size) : platform_{platform} {
    for (const simulated_port& each : platform.ports)
      cards_.emplace_back((size + each.ranks - 1) / each.ranks);
  }

  /// Lets a message of `bytes` bytes in `requests` pieces leave at `now`, or when the port of the
  /// sender is free. Returns the time at which its first byte reaches the port of the receiver.
  virtual_time leave(std::uint32_t from, std::uint32_t to, std::size_t requests, std::size_t bytes,
                     virtual_time now) noexcept {
    if (from == to) return now;
    const simulated_level& level = level_of(from, to);
    virtual_time& free = card(level, from).out;
    const virtual_time start = std::max(now, free);
    free = start + span_of(level, requests, bytes);
    return start + picoseconds(level.latency_ns);
  }
  /// Returns the time at which the first byte of a message that leaves at `now` reaches the
  /// receiver, if no port is busy.
  [[nodiscard]] virtual_time pass(std::uint32_t from, std::uint32_t to,
                                  virtual_time now) const noexcept {
    return from == to ? now : now + picoseconds(level_of(from, to).latency_ns);
  }
  /// Lets a message, whose first byte reaches the receiver at `now`, enter the receiver's port.
  /// Returns the time at which all of it has passed the port.
  virtual_time enter(std::uint32_t from, std::uint32_t to, std::size_t requests, std::size_t bytes,
                     virtual_time now) noexcept {
    if (from == to) return now;
    const simulated_level& level = level_of(from, to);
    virtual_time& free = card(level, to).in;
    free = std::max(now, free) + span_of(level, requests, bytes);
    return free;
  }

 private:
  /// A port, which sends and receives at the same time.
  struct card_times {
    virtual_time out = 0;
    virtual_time in = 0;
  };

  [[nodiscard]] const simulated_level& level_of(std::uint32_t from,
                                                std::uint32_t to) const noexcept {
    return platform_.levels[platform_.shared_level(from, to)];
  }
  [[nodiscard]] card_times& card(const simulated_level& level, std::uint32_t rank) noexcept {
    return cards_[level.port][rank / platform_.ports[level.port].ranks];
  }
  [[nodiscard]] static virtual_time span_of(const simulated_level& level, std::size_t requests,
                                            std::size_t bytes) noexcept {
    return picoseconds(static_cast<double>(requests) * level.message_ns +
                       static_cast<double>(bytes) / level.gb_per_s);
  }

  const simulated_platform& platform_;
  std::vector<std::vector<card_times>> cards_;  ///< indexed by [port][card]
};

}  // namespace peerbus::detail
