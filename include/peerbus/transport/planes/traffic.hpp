// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <peerbus/core/align.hpp>

namespace peerbus {

/// The traffic of a rank over one plane since the transport was made. Counts the accepted calls of
/// the transport: a put, a get, a signal and an atomic are one message each, and so is a put with
/// its signal.
struct plane_traffic {
  std::uint64_t bytes = 0;     ///< bytes of puts and gets; a signal or an atomic adds none
  std::uint64_t messages = 0;  ///< number of requests
};

namespace detail {

/// Counts the traffic of one plane.
/// Cost: up to two atomic additions for each call, on a cache line that only threads of this rank
/// use.
/// Threads: any.
class alignas(cache_line_bytes) traffic_counter {
 public:
  /// Adds `messages` messages with `bytes` bytes in all.
  void add(std::size_t bytes, std::size_t messages = 1) noexcept {
    // order: relaxed; the numbers guard no other data.
    if (bytes != 0) bytes_.fetch_add(bytes, std::memory_order_relaxed);
    messages_.fetch_add(messages, std::memory_order_relaxed);
  }
  /// Returns the traffic so far.
  [[nodiscard]] plane_traffic read() const noexcept {
    return {bytes_.load(std::memory_order_relaxed), messages_.load(std::memory_order_relaxed)};
  }

 private:
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> messages_{0};
};

/// The counters of two planes.
struct pair_traffic {
  traffic_counter near;
  traffic_counter far;
};

}  // namespace detail

}  // namespace peerbus
