// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include <peerbus/moe/lane.hpp>

#include "support/pin.hpp"

namespace ep_bench {

/// The threads of one rank that carry an operation together: the one that made this is lane 0, the
/// others wait for work until this ends.
class lane_pool {
 public:
  /// `first_core`: lane i stays on the i-th core from there on, which the maker sees to for lane 0
  /// after this.
  lane_pool(std::size_t lanes, std::optional<std::size_t> first_core) {
    for (std::size_t i = 1; i < lanes; ++i)
      helpers_.emplace_back([this, i, lanes, first_core] {
        if (first_core) bench::pin_this_thread(*first_core + i);
        help({i, lanes});
      });
  }
  lane_pool(const lane_pool&) = delete;
  lane_pool& operator=(const lane_pool&) = delete;
  ~lane_pool() {
    work_ = nullptr;
    begin();
    for (std::thread& helper : helpers_) helper.join();
  }

  /// Calls `work(lane)` on all lanes and returns when the last is done. Throws what lane 0 does:
  /// what one lane throws, all throw.
  template <class Work>
  void run(Work&& work) {
    if (helpers_.empty()) return work(peerbus::moe::lane{});
    work_ = [&](peerbus::moe::lane as) { work(as); };
    begin();
    try {
      work(peerbus::moe::lane{0, helpers_.size() + 1});
    } catch (...) {
      wait_for_helpers();
      throw;
    }
    wait_for_helpers();
  }

 private:
  static constexpr int patience = 20'000;  ///< looks before a thread sleeps

  void begin() noexcept {
    // order: relaxed; helpers see it by the release of `turn_`.
    done_.store(0, std::memory_order_relaxed);
    // order: release; pairs with the acquires in `help`, so that helpers see `work_`.
    turn_.fetch_add(1, std::memory_order_release);
    turn_.notify_all();
  }
  void wait_for_helpers() noexcept {
    // order: acquire; pairs with the release of each helper in `help`.
    for (std::size_t seen = 0; (seen = done_.load(std::memory_order_acquire)) != helpers_.size();)
      std::this_thread::yield();
  }

  void help(peerbus::moe::lane as) noexcept {
    for (std::uint64_t seen = 0;;) {
      std::uint64_t now = seen;
      for (int look = 0; now == seen && look < patience; ++look) {
        // order: acquire; pairs with the release in `begin`.
        now = turn_.load(std::memory_order_acquire);
        if (look % 64 == 63) std::this_thread::yield();
      }
      // order: acquire; as above. The next turn of the loop loads the number.
      if (now == seen) turn_.wait(seen, std::memory_order_acquire);
      if (now == seen) continue;
      seen = now;
      if (!work_) return;
      try {
        work_(as);
      } catch (...) {  // NOLINT(bugprone-empty-catch): lane 0 throws the same.
      }
      // order: release; pairs with the acquire in `wait_for_helpers`.
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  std::function<void(peerbus::moe::lane)> work_;
  std::atomic<std::uint64_t> turn_{0};
  std::atomic<std::size_t> done_{0};
  std::vector<std::thread> helpers_;
};

}  // namespace ep_bench
