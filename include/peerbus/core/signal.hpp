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

/// The number of a signal within a window. It is a distinct type, so that a signal cannot be passed
/// as a value or an offset.
enum class signal_id : std::uint32_t {};

/// Returns the signal's position in arrays with one element per signal.
constexpr std::size_t index(signal_id id) noexcept { return static_cast<std::size_t>(id); }

/// A 64-bit epoch that one rank raises and others wait for. It starts at zero and is never lowered
/// or cleared. It fills two cache lines: the value is alone in the first, and the
/// second holds the state that waiters and raisers use for parking. All-zero bytes are a valid
/// signal and it holds no pointer, so that it may lie in memory that several processes map.
///
/// Threads: one raiser at a time, any number of waiters.
///
/// Parking loses no wake-up. A waiter sets bit 0 of `parked_` to announce that it is about to
/// sleep, and then reads `value_`. A raiser writes `value_` and then reads `parked_`. Both put a
/// sequentially consistent operation between the two steps, so that at least one of them sees the
/// write of the other. The other bits of `parked_` count wake-ups. A raiser increments the count
/// before it wakes the sleepers, and a waiter only falls asleep while `parked_` is unchanged since
/// its announcement. A wake-up that comes before the sleep is therefore not lost either, even if
/// another waiter has set bit 0 again meanwhile. tests/core/signal_model_test.cpp checks all
/// interleavings.
class alignas(cache_line_bytes) signal_word {
 public:
  /// Returns the greatest value raised so far.
  /// order: acquire; pairs with the release in `set`. A thread that sees a value also sees
  /// everything that the raiser wrote before it raised that value.
  [[nodiscard]] std::uint64_t value() const noexcept {
    return value_.load(std::memory_order_acquire);
  }

  /// Sets the word to `value`, which must not be below its present value, and wakes parked waiters.
  /// A waiter that sees `value` also sees all earlier writes of this thread.
  /// Cost: a store and a fence, and one system call if a waiter is parked.
  void raise(std::uint64_t value) noexcept {
    set(value);
    fence();
    wake_parked();
  }

  /// Raises the word to at least `value`, while another thread or process may `raise` it at the
  /// same time. Used by a rank that takes signals from a device and raises them in its own memory,
  /// in words that peers also store to. Wakes and publishes as `raise`. Does nothing if the word is
  /// high enough.
  /// Cost: an atomic instruction and a fence, and one system call if a waiter is parked.
  void raise_at_least(std::uint64_t value) noexcept {
    std::uint64_t present = value_.load(std::memory_order_relaxed);
    // order: release; pairs with the acquire in `value`. A plain store of another raiser that comes
    // between the two fails the exchange, and one that comes later replaces a smaller value.
    while (present < value)
      if (value_.compare_exchange_weak(present, value, std::memory_order_release,
                                       std::memory_order_relaxed)) {
        fence();
        return wake_parked();
      }
  }

  /// Raises `count` words, `word_of(i)`, to the same value. A single fence serves all words, so
  /// that their cache lines are fetched concurrently and not one after the other.
  /// Cost: a store for each word, a fence, and one system call for each word with a parked waiter.
  template <class WordOf>
  static void raise_each(std::size_t count, WordOf&& word_of, std::uint64_t value) noexcept {
    for (std::size_t i = 0; i < count; ++i) word_of(i).set(value);
    fence();
    for (std::size_t i = 0; i < count; ++i) word_of(i).wake_parked();
  }

  /// Orders the store of a value before later loads. `raise` executes it between its store and its
  /// look for sleepers. After `raise`, a raiser may therefore also look for sleepers of other
  /// kinds: threads that announced their sleep, executed a fence, and then found the value too low.
  static void fence() noexcept {
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wtsan"  // The fence orders `parked_` only; TSan may ignore it.
#endif
    // order: seq_cst, between the store of `value_` and the load of `parked_`; pairs with the
    // seq_cst operations in `park`.
    std::atomic_thread_fence(std::memory_order_seq_cst);
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
  }

  /// Waits until the word is at least `target`. Meanwhile calls `health` every `check_interval`,
  /// and once more at the deadline. If `health` returns another code than `errc::ok`, the wait ends
  /// with that code. Because of the call at the deadline, a caller that waits repeatedly, each time
  /// for less than `check_interval`, also learns of a dead peer. `value` reads the word without
  /// calling `health`.
  /// Returns: ok, timed_out, or the code of `health`.
  /// Cost: no system call while the thresholds `tight` and `paused` last.
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
    // With a plain store and a fence, the request for the cache line overlaps with those of the
    // payload's stores. A single exchange would wait for them.
    // order: release; pairs with the acquire in `value`.
    value_.store(value, std::memory_order_release);
  }

  /// Wakes the waiters that have announced their sleep. Requires a `fence` after the write of the
  /// value.
  void wake_parked() noexcept {
    // order: relaxed; `fence` orders it after the store of `value_`.
    const std::uint32_t seen = parked_.load(std::memory_order_relaxed);
    if ((seen & 1U) != 0) wake_sleepers(seen);
  }
  void wake_sleepers(std::uint32_t seen) noexcept;

  void park(std::uint64_t target, deadline until) noexcept;

  errc wait_slowly(std::uint64_t target, deadline until, const wait_thresholds& thresholds,
                   detail::function_ref<errc()> health) noexcept;

  std::atomic<std::uint64_t> value_{0};
  // On its own cache line, because the raiser reads it while the waiter fetches the line of
  // `value_`.
  alignas(cache_line_bytes) std::atomic<std::uint32_t> parked_{0};
};

static_assert(sizeof(signal_word) == 2 * cache_line_bytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/signal.ipp>  // IWYU pragma: keep
#endif
