// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail::rdma {

/// Deals out the entries of registered memory to which a device writes results of atomics. A call
/// has an entry until it has read its result.
///
/// Threads: any.
class result_entries {
 public:
  static constexpr std::size_t count = 16;

  /// Returns a free entry, or nothing if all are in use.
  [[nodiscard]] std::optional<std::size_t> take() noexcept {
    std::uint32_t used = used_.load(std::memory_order_relaxed);
    for (;;) {
      const auto free = static_cast<std::size_t>(std::countr_one(used));
      if (free >= count) return std::nullopt;
      // order: acquire; pairs with the release in `give_back`: its last user has read the result.
      if (used_.compare_exchange_weak(used, used | 1U << free, std::memory_order_acquire))
        return free;
    }
  }
  void give_back(std::size_t entry) noexcept {
    used_.fetch_and(~(1U << entry), std::memory_order_release);
  }

 private:
  std::atomic<std::uint32_t> used_{0};
};

}  // namespace peerbus::detail::rdma
