// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include <peerbus/core/align.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/wait.hpp>

namespace peerbus {

/// Number of a signal within a window; a type of its own, so that it cannot be mistaken for the
/// value or an offset.
enum class signal_id : std::uint32_t {};

constexpr std::size_t index(signal_id id) noexcept { return static_cast<std::size_t>(id); }

/// A 64-bit epoch that one rank raises and the owner of the memory waits for, alone in its cache
/// line; in the next one, the note of a waiter that it is about to sleep. Zero at first, never
/// lowered, never cleared. All-zero bytes are a valid signal, and it holds no pointer, so it may
/// lie in memory that several processes map.
///
/// Threads: one raiser at a time, any number of waiters.
///
/// Parking loses no wake-up. A waiter announces itself in `parked_` and then reads `value_`; a
/// raiser writes `value_` and then reads `parked_`; both have sequentially consistent order in
/// between, so at least one of them sees the other. Bit 0 of `parked_` says that somebody has
/// announced himself, the rest counts wake-ups. The raiser moves `parked_` on before it wakes, and
/// a waiter sleeps only while it is what it was at the announcement, so a wake-up that comes before
/// the sleep is not lost either, not even if another waiter sets the bit again meanwhile.
/// tests/core/signal_model_test.cpp checks all interleavings.
class alignas(cache_line_bytes) signal_word {
 public:
  /// The greatest value raised so far.
  /// order: acquire; pairs with the release in `raise`: whoever sees the value sees everything
  /// that the raiser wrote before.
  [[nodiscard]] std::uint64_t value() const noexcept {
    return value_.load(std::memory_order_acquire);
  }

  /// Makes the word `value`, which is not below its present one, after all earlier writes of this
  /// thread are visible, and wakes a parked waiter. One system call if one is parked, else none.
  void raise(std::uint64_t value) noexcept {
    set(value);
    fence();
    wake_parked();
  }

  /// Raises `count` words, `word_of(i)`, to one value. One fence serves all, so that their cache
  /// lines are fetched at the same time rather than one after the other.
  template <class WordOf>
  static void raise_each(std::size_t count, WordOf&& word_of, std::uint64_t value) noexcept {
    for (std::size_t i = 0; i < count; ++i) word_of(i).set(value);
    fence();
    for (std::size_t i = 0; i < count; ++i) word_of(i).wake_parked();
  }

  /// Returns once the word is at least `target`. `health` is asked every `check_interval` while
  /// nothing arrives, and once more at the deadline. It ends the wait with its code unless it says
  /// `errc::ok`. A caller that waits again and again, each time for less than `check_interval`,
  /// therefore learns of a dead peer too. `value` looks without asking.
  /// Returns: ok, timed_out, or what `health` said.
  template <std::invocable Health>
  [[nodiscard]] errc wait_at_least(std::uint64_t target, deadline until,
                                   const wait_thresholds& thresholds, Health&& health) noexcept {
    for (std::uint32_t i = 0; i <= thresholds.tight; ++i)
      if (value() >= target) return errc::ok;
    for (std::uint32_t i = 0; i < thresholds.paused; ++i) {
      if (value() >= target) return errc::ok;
      pause_core();
    }
    return wait_slowly(target, until, thresholds, [&health] { return health(); });
  }

 private:
  void set(std::uint64_t value) noexcept {
    // A plain store and a fence after it, rather than one exchange: the store's request for the
    // cache line then overlaps with those of the payload before it.
    value_.store(value, std::memory_order_release);  // order: pairs with the acquire in `value`.
  }

  static void fence() noexcept {
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wtsan"  // Fences only order `parked_`, which TSan need not see.
#endif
    std::atomic_thread_fence(std::memory_order_seq_cst);  // order: pairs with the one in `park`.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
  }

  /// After a `fence` that follows the write of the value.
  void wake_parked() noexcept {
    const std::uint32_t seen = parked_.load(std::memory_order_relaxed);
    if ((seen & 1U) != 0) wake_sleepers(seen);
  }
  void wake_sleepers(std::uint32_t seen) noexcept;

  void park(std::uint64_t target, deadline until) noexcept;

  errc wait_slowly(std::uint64_t target, deadline until, const wait_thresholds& thresholds,
                   detail::function_ref<errc()> health) noexcept;

  std::atomic<std::uint64_t> value_{0};
  // On a line of its own: the raiser reads it just when the waiter pulls over the line of `value_`.
  alignas(cache_line_bytes) std::atomic<std::uint32_t> parked_{0};
};

static_assert(sizeof(signal_word) == 2 * cache_line_bytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/impl/signal.hpp>  // IWYU pragma: keep
#endif
