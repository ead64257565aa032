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

/// An operation in which the ranks of a group wait for each other. The operations of all layers are
/// listed here, because ranks tell each other by these numbers in which operation they wait.
enum class group_operation : std::uint8_t {
  none,              ///< no operation yet
  allgather,         ///< `bootstrap::allgather`, by which ranks meet and agree
  barrier,           ///< `communicator::barrier`
  view_change,       ///< `communicator::continue_without_the_dead`; the number is that of the view
  view_gather,       ///< `rank_group::gather_in_view`; the number is that of the view
  signal,            ///< `window::await`; the number is the expected value
  call_agreement,    ///< the calls of DeepEP, whose ranks compare arguments
  dispatch,          ///< `moe::exchange::dispatch`
  combine,           ///< `moe::exchange::combine`; the number is that of the dispatch
  batch_send_recv,   ///< `collective::batch_send_recv`; the number is that of the call
  broadcast,         ///< `collective::broadcast`; here and below, the number is that of the call
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
  counts,   ///< ranks tell each other the numbers of rows
  rows,     ///< rows travel to the experts
  outputs,  ///< outputs travel home
  weights,  ///< late weights travel to the experts
};

/// A wait of a rank for other ranks: the kind of the operation, its number and its phase.
struct group_wait {
  group_operation operation = group_operation::none;  ///< the operation in which the rank waits
  operation_phase phase = operation_phase::whole;     ///< the part of the operation in which the
                                                      ///< rank waits
  std::uint64_t number = 0;                           ///< the number of the operation, modulo 2^47;
                                                      ///< 0 if it has none

  friend bool operator==(const group_wait&, const group_wait&) = default;
};

///@{
/// Returns the name of an operation or a phase, such as "dispatch" or "rows".
[[nodiscard]] const char* name_of(group_operation operation) noexcept;
[[nodiscard]] const char* name_of(operation_phase phase) noexcept;
///@}

/// The latest wait of a rank for others, as other ranks see it.
struct activity {
  group_wait wait;                 ///< the latest wait that it began
  bool is_over = false;            ///< whether the wait has ended because the awaited data or
                                   ///< signal came
  std::chrono::nanoseconds since;  ///< the time since the wait began
  std::chrono::nanoseconds heard;  ///< the time since the latest sign that the rank lives
};

/// Returns words such as "waiting for rows of dispatch 17" or "done with barrier 4".
[[nodiscard]] std::string describe(const activity& seen);

namespace detail {

/// The latest wait of one rank, in memory that the rank writes and other ranks read on demand.
/// Other ranks use the wait only for errors, `health` and an `observed_group`. All-zero bytes mean
/// that no process has become the rank yet.
///
/// Times are those of CLOCK_MONOTONIC_COARSE, which all processes of a host share. Reading it takes
/// a third of the time of an exact clock. Times are exact to a few milliseconds.
///
/// Threads: any number. If several threads of a rank wait at once, the latest wait is seen.
class alignas(cache_line_bytes) activity_line {
 public:
  /// A time of the clock, in nanoseconds.
  using ticks = std::int64_t;
  /// The bit in the word of a wait that is set while the wait goes on.
  static constexpr std::uint64_t waits_bit = 1;

  /// A wait that `begin` has recorded.
  struct begun {
    std::uint64_t word = 0;  ///< the word that `end` stores
    ticks since = 0;         ///< the time at which the wait began; 0 before the first wait
  };

  /// A process that `claim` has recorded.
  struct claimed {
    pid_t process = 0;  ///< 0 if no process has become the rank yet
    /// The time at which the process became the rank, in nanoseconds of CLOCK_BOOTTIME, by which
    /// the kernel also states the starts of processes.
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
  /// Records that `wait` has ended because the awaited data or signal came.
  /// Cost: one store.
  void end(const begun& wait) noexcept { latest_.store(wait.word, std::memory_order_relaxed); }
  /// Records that the rank lives. Called while a wait goes on.
  /// Cost: a store and a clock read.
  void beat() noexcept { heard_.store(now(), std::memory_order_relaxed); }

  /// A wait in the form in which one host reports it to another host.
  struct notice {
    std::uint64_t word = 0;  ///< the word of the wait, with `waits_bit`; 0 if there is no wait
    ticks age = 0;           ///< the time since the wait began

    /// Returns this wait with the state that it has ended.
    [[nodiscard]] notice ended() const noexcept { return {word & ~waits_bit, age}; }
  };
  /// Returns the wait that goes on. Its word is 0 if no wait goes on.
  [[nodiscard]] notice tell() const noexcept;
  /// Records a wait that the rank, which is on another host, has reported. The clock of that host
  /// differs, so the time is computed from `age`.
  void hear(const notice& heard) noexcept;

  /// Returns the latest wait of the rank, or nothing if it has not waited yet.
  [[nodiscard]] std::optional<activity> read() const noexcept;

  /// Returns the wait that `begin` encoded in `begun::word`.
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

  /// Returns the present time.
  [[nodiscard]] static ticks now() noexcept {
    if (const auto* const simulated = clock_of_thread)
      return std::chrono::nanoseconds{simulated->glance().time_since_epoch()}.count();
    timespec read{};
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &read);
    return read.tv_sec * 1'000'000'000 + read.tv_nsec;
  }

 private:
  /// Encodes a wait. The lowest bit is `waits_bit`, here 0. Then come 8 bits of the operation, 8
  /// bits of the phase, and the number.
  [[nodiscard]] static constexpr std::uint64_t encode(const group_wait& wait) noexcept {
    return static_cast<std::uint64_t>(wait.operation) << 1U |
           static_cast<std::uint64_t>(wait.phase) << 9U | wait.number << 17U;
  }

  std::atomic<std::uint64_t> latest_{0};  ///< the latest wait
  std::atomic<ticks> since_{0};           ///< the time at which the latest wait began
  std::atomic<ticks> heard_{0};           ///< the time of the latest `beat` or `hear`
  std::atomic<ticks> claimed_{0};         ///< the time at which `process_` became the rank
  std::atomic<pid_t> process_{0};         ///< the process of the rank
};

static_assert(sizeof(activity_line) == cache_line_bytes);

/// Returns the time since a wait began in words, such as "1.5 s", for messages.
[[nodiscard]] std::string describe_elapsed(const activity_line::begun& wait);

}  // namespace detail

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/activity.ipp>  // IWYU pragma: keep
#endif
