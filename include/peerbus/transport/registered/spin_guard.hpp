// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>

#include <atomic>

#include <peerbus/core/wait.hpp>

namespace peerbus::detail::registered {

/// A lock that lets only one thread of a rank at a time use a queue. It is held while requests are
/// noted or posted, or completions taken. It is also held during a wait for room or for earlier
/// puts, when no other thread could use the queue either. It works with std::lock_guard.
class spin_guard {
 public:
  void lock() noexcept {
    for (;;) {
      for (int i = 0; i < 64; ++i) {
        if (try_lock()) return;
        pause_core();
      }
      ::sched_yield();  // The holder may need this very core.
    }
  }
  [[nodiscard]] bool try_lock() noexcept {
    // order: acquire; pairs with the release in `unlock`.
    return !taken_.load(std::memory_order_relaxed) &&
           !taken_.exchange(true, std::memory_order_acquire);
  }
  void unlock() noexcept { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

}  // namespace peerbus::detail::registered
