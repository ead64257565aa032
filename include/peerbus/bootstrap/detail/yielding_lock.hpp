// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>

#include <atomic>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail {

/// A lock that is held only for a moment, such as for a poll of connections. A thread that waits
/// for it gives its core to others. Meets the requirements of `std::lock_guard` and
/// `std::unique_lock`.
class yielding_lock {
 public:
  void lock() noexcept {
    while (!try_lock()) ::sched_yield();
  }
  // order: acquire; pairs with the release in `unlock`.
  [[nodiscard]] bool try_lock() noexcept { return !held_.test_and_set(std::memory_order_acquire); }
  // order: release; pairs with the acquire in `try_lock`.
  void unlock() noexcept { held_.clear(std::memory_order_release); }

 private:
  std::atomic_flag held_;
};

}  // namespace peerbus::detail
