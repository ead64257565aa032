// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail::registered {

/// Counts the posted and the complete requests of one queue. Counts wrap around.
///
/// Threads: `note_posted` from one at a time, the rest from any.
class request_count {
 public:
  [[nodiscard]] std::uint32_t posted() const noexcept {
    return posted_.load(std::memory_order_relaxed);  // order: none; the poster knows its own count.
  }
  void note_posted(std::uint32_t count) noexcept {
    posted_.store(posted() + count, std::memory_order_relaxed);
  }

  /// Notes that all requests up to number `last` are complete.
  void complete(std::uint32_t last) noexcept {
    // order: release; pairs with the acquires below.
    completed_.store(last, std::memory_order_release);
  }
  [[nodiscard]] bool completed_up_to(std::uint32_t number) const noexcept {
    // order: acquire; pairs with the release in `complete`: what was read from the peer is there.
    const std::uint32_t completed = completed_.load(std::memory_order_acquire);
    return static_cast<std::int32_t>(completed - number) >= 0;
  }
  [[nodiscard]] std::uint32_t completed() const noexcept {
    return completed_.load(std::memory_order_acquire);  // order: as `completed_up_to`.
  }
  /// Returns the number of requests in flight, or 0 if requests complete before their poster has
  /// counted them.
  [[nodiscard]] std::uint32_t in_flight() const noexcept {
    const std::uint32_t count = posted() - completed();
    return static_cast<std::int32_t>(count) < 0 ? 0 : count;
  }

 private:
  std::atomic<std::uint32_t> posted_{0};
  std::atomic<std::uint32_t> completed_{0};
};

}  // namespace peerbus::detail::registered
