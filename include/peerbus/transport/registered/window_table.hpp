// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail::registered {

/// The windows of a rank, found by number and by address.
///
/// Threads: `find` and `key_of` from any, at any time; the rest from one at a time.
template <class Part>
class window_table {
 public:
  using local_key = typename Part::local_key;
  static constexpr std::size_t capacity = 1024;

  /// Returns the number for the next window, which is the same on all ranks if their tables hold
  /// the same windows. Empty if all places are taken.
  [[nodiscard]] std::optional<std::uint32_t> next_number() const noexcept {
    for (std::uint32_t n = last_ + 1; n != last_ + 1 + capacity; ++n)
      if (entries_[n % capacity].part.load(std::memory_order_relaxed) == nullptr) return n;
    return std::nullopt;
  }

  /// Takes a part over, which can be found from now on.
  /// Throws: std::bad_alloc.
  Part& insert(std::unique_ptr<Part> made) {
    parts_.push_back(std::move(made));
    Part& part = *parts_.back();
    const auto place = static_cast<std::uint32_t>(part.number % capacity);
    entry& held = entries_[place];
    held.key.store(part.registration ? part.registration.local_key() : local_key{},
                   std::memory_order_relaxed);
    held.begin.store(part.address(), std::memory_order_relaxed);
    // order: release; pairs with the acquires in `find` and `key_of`.
    held.end.store(part.address() + part.shape.bytes, std::memory_order_release);
    held.part.store(&part, std::memory_order_release);
    used_.store(std::max(used_.load(std::memory_order_relaxed), place + 1),
                std::memory_order_release);
    return part;
  }
  /// Notes that all ranks have inserted window `number`.
  void commit(std::uint32_t number) noexcept { last_ = number; }
  /// Removes a part of the table, and returns it. It can no longer be found.
  [[nodiscard]] std::unique_ptr<Part> remove(const Part& part) noexcept {
    entry& held = entries_[part.number % capacity];
    held.part.store(nullptr, std::memory_order_release);
    held.end.store(0, std::memory_order_release);
    const auto owner = std::find_if(parts_.begin(), parts_.end(),
                                    [&part](const auto& kept) { return kept.get() == &part; });
    std::unique_ptr<Part> removed = std::move(*owner);
    parts_.erase(owner);
    return removed;
  }
  [[nodiscard]] std::span<const std::unique_ptr<Part>> parts() const noexcept { return parts_; }

  /// Returns the part of window `number`, or null if the window does not exist or was released.
  [[nodiscard]] Part* find(std::uint32_t number) const noexcept {
    Part* const part = entries_[number % capacity].part.load(std::memory_order_acquire);
    return part != nullptr && part->number == number ? part : nullptr;
  }

  /// Returns the local key of registered memory. Empty if the memory is not within one window.
  [[nodiscard]] std::optional<local_key> key_of(std::span<const std::byte> memory) const noexcept {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    const std::size_t used = used_.load(std::memory_order_acquire);  // order: as `find`.
    for (std::size_t i = 0; i < used; ++i) {
      const entry& held = entries_[i];
      const std::uintptr_t end = held.end.load(std::memory_order_acquire);
      if (begin >= end || begin < held.begin.load(std::memory_order_relaxed)) continue;
      if (memory.size() > end - begin) return std::nullopt;
      return held.key.load(std::memory_order_relaxed);
    }
    return std::nullopt;
  }

 private:
  struct entry {
    std::atomic<Part*> part{nullptr};
    std::atomic<std::uintptr_t> begin{0};
    std::atomic<std::uintptr_t> end{0};
    std::atomic<local_key> key{};
  };
  std::vector<std::unique_ptr<Part>> parts_;
  std::array<entry, capacity> entries_{};
  std::atomic<std::uint32_t> used_{0};
  std::uint32_t last_ = 0;
};

}  // namespace peerbus::detail::registered
