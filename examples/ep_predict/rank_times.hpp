// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <peerbus/transport/simulated/platform.hpp>

#include "rank_traffic.hpp"

/// The cost model of `simulated`, for one rank at a time. Times are nanoseconds since all ranks
/// began.
namespace ep_predict {

/// Returns how long a message keeps a port busy.
[[nodiscard]] inline double span_of(const peerbus::simulated_level& level,
                                    const put_message& message) noexcept {
  return message.pieces * level.message_ns + static_cast<double>(message.bytes) / level.gb_per_s;
}

/// The message that raises a signal.
inline constexpr put_message signal_message{1, 8};

/// The sending half of a rank: its own time and its ports.
class sender {
 public:
  sender(std::size_t ports, double now) : now_{now}, free_(ports) {}

  [[nodiscard]] double now() const noexcept { return now_; }
  /// Lets the rank compute for `ns`.
  void work(double ns) noexcept { now_ += ns; }
  /// Lets the rank wait until `time`, unless that is past.
  void wait(double time) noexcept { now_ = std::max(now_, time); }
  /// Sends a message that takes the rank `cost_ns`. Returns when it begins to leave.
  double send(const peerbus::simulated_level& level, const put_message& message,
              double cost_ns) noexcept {
    now_ += cost_ns;
    double& free = free_[level.port];
    const double start = std::max(now_, free);
    free = start + span_of(level, message);
    bytes_ += message.bytes;
    ++messages_;
    return start;
  }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint64_t messages() const noexcept { return messages_; }
  /// Returns when a message that takes the rank `cost_ns` would begin to leave.
  [[nodiscard]] double next(const peerbus::simulated_level& level, double cost_ns) const noexcept {
    return std::max(now_ + cost_ns, free_[level.port]);
  }

 private:
  double now_;
  std::vector<double> free_;  ///< [ports]
  std::uint64_t bytes_ = 0;
  std::uint64_t messages_ = 0;
};

/// The receiving half of a rank: messages that come to its ports, which serve them in the order of
/// their arrival.
class receiver {
 public:
  receiver(std::size_t ports, std::size_t peers) : free_(ports), raised_(peers) {}

  /// Expects a message that began to leave its sender at `start`.
  void expect(const peerbus::simulated_level& level, const put_message& message, double start) {
    arrivals_.push_back({start + level.latency_ns, span_of(level, message),
                         static_cast<std::uint32_t>(level.port), no_signal});
  }
  /// Expects a signal of the peer at `position` of this rank's order of visits.
  void expect_signal(const peerbus::simulated_level& level, std::size_t position, double start) {
    expect(level, signal_message, start);
    arrivals_.back().position = static_cast<std::uint32_t>(position);
  }
  /// Serves all expected messages.
  void receive();
  /// Returns when the signal of the peer at `position` was raised, after `receive`.
  [[nodiscard]] double raised(std::size_t position) const noexcept { return raised_[position]; }

 private:
  static constexpr std::uint32_t no_signal = ~std::uint32_t{0};
  struct arrival {
    double time;
    double span;
    std::uint32_t port;
    std::uint32_t position;
  };

  std::vector<double> free_;       ///< [ports]
  std::vector<double> raised_;     ///< [peers]
  std::vector<arrival> arrivals_;  ///< that `receive` has not served
};

inline void receiver::receive() {
  std::ranges::stable_sort(arrivals_, {}, &arrival::time);
  for (const arrival& next : arrivals_) {
    double& free = free_[next.port];
    free = std::max(next.time, free) + next.span;
    if (next.position != no_signal) raised_[next.position] = free;
  }
  arrivals_ = {};  // Its memory is needed for the next rank.
}

}  // namespace ep_predict
