// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>

#include <peerbus/core/align.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/virtual_clock.hpp>

namespace peerbus {

/// An operation in which the ranks of a group wait for each other. All layers have their names
/// here, because ranks tell each other by these numbers what they do.
enum class group_operation : std::uint8_t {
  none,              ///< no operation yet
  allgather,         ///< `bootstrap::allgather`, by which ranks meet and agree
  barrier,           ///< `communicator::barrier`
  view_change,       ///< `communicator::continue_without_the_dead`; the number is the view's
  view_gather,       ///< `rank_group::gather_in_view`; the number is the view's
  signal,            ///< `window::await`; the number is the expected value
  call_agreement,    ///< DeepEP's calls, whose ranks compare arguments
  dispatch,          ///< `moe::exchange::dispatch`
  combine,           ///< `moe::exchange::combine`; the number is that of the dispatch
  batch_send_recv,   ///< `collective::batch_send_recv`; the number is that of the call
  broadcast,         ///< `collective::broadcast`; here and below, the number is the team's call
  gather,            ///< `collective::gather`
  gather_v,          ///< `collective::gather_v`
  scatter,           ///< `collective::scatter`
  scatter_v,         ///< `collective::scatter_v`
  all_gather,        ///< `collective::all_gather`, `collective::all_gather_coded`
  all_gather_v,      ///< `collective::all_gather_v`
  all_to_all,        ///< `collective::all_to_all`
  all_to_all_v,      ///< `collective::all_to_all_v`
  reduce,            ///< `collective::reduce`
  all_reduce,        ///< `collective::all_reduce`
  all_reduce_add,    ///< `collective::all_reduce_add`
  reduce_scatter,    ///< `collective::reduce_scatter`
  reduce_scatter_v,  ///< `collective::reduce_scatter_v`
};

/// The part of an operation in which a rank waits.
enum class operation_phase : std::uint8_t {
  whole,    ///< the operation has no parts
  counts,   ///< ranks tell each other how many rows come
  rows,     ///< rows travel to the experts
  outputs,  ///< outputs travel home
  weights,  ///< late weights travel to the experts
};

/// A wait of a rank for other ranks: in which operation, which one of these, and in which phase.
struct group_wait {
  group_operation operation = group_operation::none;  ///< in which it waits
  operation_phase phase = operation_phase::whole;     ///< in which part of that
  std::uint64_t number = 0;                           ///< modulo 2^47; 0 if it has none

  friend bool operator==(const group_wait&, const group_wait&) = default;
};

///@{
/// Returns the name of an operation or a phase, such as "dispatch" or "rows".
[[nodiscard]] const char* name_of(group_operation operation) noexcept;
[[nodiscard]] const char* name_of(operation_phase phase) noexcept;
///@}

/// The latest wait of a rank for others, as others see it.
struct activity {
  group_wait wait;                 ///< the latest wait that it began
  bool is_over = false;            ///< whether what it waited for has come
  std::chrono::nanoseconds since;  ///< how long ago the wait began
  std::chrono::nanoseconds heard;  ///< how long ago the rank was last heard
};

/// Returns "waiting for rows of dispatch 17", "done with barrier 4" or the like.
[[nodiscard]] std::string describe(const activity& seen);

namespace detail {

/// The place where one rank writes what it does, in memory that others read when they ask for it.
/// Nothing is computed from it but what errors, `health` and an `observed_group` say. All-zero
/// bytes say that no process has become the rank yet.
///
/// Times are those of CLOCK_MONOTONIC_COARSE, which all processes of a host share and which takes
/// a third of the time of an exact clock to read. They are exact to a few milliseconds.
///
/// Threads: any number. If several threads of a rank wait at once, the latest wait is seen.
class alignas(cache_line_bytes) activity_line {
 public:
  /// A time of the clock, in nanoseconds.
  using ticks = std::int64_t;
  /// Whether a wait goes on, in the word of it.
  static constexpr std::uint64_t waits_bit = 1;

  /// A wait that `begin` has recorded.
  struct begun {
    std::uint64_t word = 0;  ///< as `end` stores it
    ticks since = 0;         ///< when the wait began; 0 before the first one
  };

  /// A process that `claim` has recorded.
  struct claimed {
    pid_t process = 0;  ///< 0 if no process has become the rank yet
    /// When it did, in nanoseconds of CLOCK_BOOTTIME, from which the kernel counts the starts of
    /// processes.
    ticks since = 0;
  };

  /// Records that this process is the rank.
  void claim() noexcept;

  /// Records that the rank begins a wait.
  /// Cost: two stores to a line that no other rank writes, and a clock read without a system call.
  begun begin(const group_wait& wait) noexcept {
    const begun made{encode(wait), now()};
    // order: relaxed for all accesses; each word is complete by itself, and guards no other data.
    since_.store(made.since, std::memory_order_relaxed);
    latest_.store(made.word | waits_bit, std::memory_order_relaxed);
    return made;
  }
  /// Records that what the rank waited for has come.
  /// Cost: one store.
  void end(const begun& wait) noexcept { latest_.store(wait.word, std::memory_order_relaxed); }
  /// Records that the rank lives. For waits that go on.
  /// Cost: a store and a clock read.
  void beat() noexcept { heard_.store(now(), std::memory_order_relaxed); }

  /// A wait, as one host tells another of it.
  struct notice {
    std::uint64_t word = 0;  ///< the wait, and whether it goes on; 0: none
    ticks age = 0;           ///< how long ago it began

    /// Returns the same wait when it is over.
    [[nodiscard]] notice ended() const noexcept { return {word & ~waits_bit, age}; }
  };
  /// Returns the wait that goes on, if one does.
  [[nodiscard]] notice tell() const noexcept;
  /// Records what the rank has told from another host, where clocks are others.
  void hear(const notice& heard) noexcept;

  /// Returns what the rank was last seen doing; nothing if it has not waited yet.
  [[nodiscard]] std::optional<activity> read() const noexcept;

  /// Returns the wait that `begin` has encoded as `begun::word`.
  [[nodiscard]] static constexpr group_wait decode(std::uint64_t word) noexcept {
    return {static_cast<group_operation>(word >> 1U & 0xffU),
            static_cast<operation_phase>(word >> 9U & 0xffU), word >> 17U};
  }

  /// Returns the process that is the rank.
  [[nodiscard]] claimed owner() const noexcept {
    // order: acquire; pairs with the release in `claim`, so that the time is read after it.
    const pid_t process = process_.load(std::memory_order_acquire);
    return {process, claimed_.load(std::memory_order_relaxed)};
  }

  /// Returns the time now.
  [[nodiscard]] static ticks now() noexcept {
    if (const auto* const simulated = clock_of_thread)
      return std::chrono::nanoseconds{simulated->glance().time_since_epoch()}.count();
    timespec read{};
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &read);
    return read.tv_sec * 1'000'000'000 + read.tv_nsec;
  }

 private:
  /// From the lowest bit on: whether it waits, 8 bits each of operation and phase, the number.
  [[nodiscard]] static constexpr std::uint64_t encode(const group_wait& wait) noexcept {
    return static_cast<std::uint64_t>(wait.operation) << 1U |
           static_cast<std::uint64_t>(wait.phase) << 9U | wait.number << 17U;
  }

  std::atomic<std::uint64_t> latest_{0};  ///< the latest wait
  std::atomic<ticks> since_{0};           ///< when it began
  std::atomic<ticks> heard_{0};           ///< when the rank was last heard in a wait that went on
  std::atomic<ticks> claimed_{0};         ///< when `process_` became the rank
  std::atomic<pid_t> process_{0};         ///< the process of the rank
};

static_assert(sizeof(activity_line) == cache_line_bytes);

/// Returns how long ago a wait began, such as "1.5 s", for messages.
[[nodiscard]] std::string describe_elapsed(const activity_line::begun& wait);

}  // namespace detail

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/activity.ipp>  // IWYU pragma: keep
#endif
