// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <peerbus/core/mapping.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/verbs/handle.hpp>
#include <peerbus/transport/verbs/request_chain.hpp>

namespace peerbus::detail::rdma {

/// One rank's part of a window: registered memory, signal words, which no device writes, and where
/// the parts of the others are.
struct window_part {
  std::uint32_t number = 0;  ///< alike on all ranks
  window_shape shape{};
  mapping data;
  mapping signals;
  memory_region registration;  ///< before `data` in destruction; empty if there are no bytes
  std::vector<remote_place> parts;
  std::atomic<bool> released{false};  ///< by this rank; peers may still reach for it
  bool reported = false;              ///< and all have been told so

  [[nodiscard]] std::uint64_t address() const noexcept {
    return reinterpret_cast<std::uintptr_t>(data.data());
  }
  [[nodiscard]] signal_word& signal(signal_id id) const noexcept {
    // Fresh mapped memory is all zero, which is the value representation of a fresh signal_word.
    return reinterpret_cast<signal_word*>(signals.data())[index(id)];
  }
};

/// The windows that a rank has, found by number and by address.
///
/// Threads: `find` and `key_of` from any, at any time; the rest from one at a time.
class window_table {
 public:
  static constexpr std::size_t capacity = 1024;

  /// The number for the next window, the same on all ranks if their tables hold the same.
  /// Empty if all places are taken.
  [[nodiscard]] std::optional<std::uint32_t> next_number() const noexcept {
    for (std::uint32_t n = last_ + 1; n != last_ + 1 + capacity; ++n)
      if (entries_[n % capacity].part.load(std::memory_order_relaxed) == nullptr) return n;
    return std::nullopt;
  }

  void insert(window_part& part) noexcept {
    entry& at = entries_[part.number % capacity];
    at.key.store(part.registration ? part.registration->lkey : 0, std::memory_order_relaxed);
    at.begin.store(part.address(), std::memory_order_relaxed);
    // order: release; pairs with the acquires in `find` and `key_of`.
    at.end.store(part.address() + part.shape.bytes, std::memory_order_release);
    at.part.store(&part, std::memory_order_release);
    const auto place = static_cast<std::uint32_t>(part.number % capacity);
    used_.store(std::max(used_.load(std::memory_order_relaxed), place + 1),
                std::memory_order_release);
  }
  /// All ranks have inserted the window of this number.
  void commit(std::uint32_t number) noexcept { last_ = number; }
  void remove(const window_part& part) noexcept {
    entry& at = entries_[part.number % capacity];
    at.part.store(nullptr, std::memory_order_release);
    at.end.store(0, std::memory_order_release);
  }

  /// Null if there is none, as it may have been released.
  [[nodiscard]] window_part* find(std::uint32_t number) const noexcept {
    window_part* const part = entries_[number % capacity].part.load(std::memory_order_acquire);
    return part != nullptr && part->number == number ? part : nullptr;
  }

  /// The local key of registered memory; empty if it is not in one window.
  [[nodiscard]] std::optional<std::uint32_t> key_of(
      std::span<const std::byte> memory) const noexcept {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    const std::size_t used = used_.load(std::memory_order_acquire);  // order: as `find`.
    for (std::size_t i = 0; i < used; ++i) {
      const entry& at = entries_[i];
      const std::uint64_t end = at.end.load(std::memory_order_acquire);
      if (begin >= end || begin < at.begin.load(std::memory_order_relaxed)) continue;
      if (memory.size() > end - begin) return std::nullopt;
      return at.key.load(std::memory_order_relaxed);
    }
    return std::nullopt;
  }

 private:
  struct entry {
    std::atomic<window_part*> part{nullptr};
    std::atomic<std::uint64_t> begin{0};
    std::atomic<std::uint64_t> end{0};
    std::atomic<std::uint32_t> key{0};
  };
  std::array<entry, capacity> entries_{};
  std::atomic<std::uint32_t> used_{0};
  std::uint32_t last_ = 0;
};

}  // namespace peerbus::detail::rdma
