// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/event_clock.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus {

/// The kind of an `operation_event`.
enum class event_kind : std::uint8_t {
  operation,  ///< a call of this rank, or one of its two halves
  wait,       ///< a wait for other ranks
  step,       ///< the part of a lane in an operation: rows written, published or summed
  send,       ///< a message to a peer, from its turn in its channel until it is sent
  recv        ///< a message from a peer, from its turn in its channel until it is received
};

/// A period in which a rank was in an operation or in a part of one. Parts lie within the period of
/// their operation on the same thread, except for messages, which may overlap each other.
struct operation_event {
  event_kind kind = event_kind::operation;  ///< the kind of the event
  group_wait what{};        ///< the operation, the phase, and the operation's sequence number
  const char* name = "";    ///< the name of the function or part, a literal such as "dispatch_recv"
  std::size_t lane = 0;     ///< the lane that reports the event
  std::int64_t begun = 0;   ///< the begin, in nanoseconds of CLOCK_MONOTONIC
  std::int64_t ended = 0;   ///< the end, in nanoseconds of CLOCK_MONOTONIC; 0 while the event goes
                            ///< on
  std::uint64_t epoch = 0;  ///< the value of the awaited signals; 0 if there are none
  std::uint64_t bytes = 0;  ///< the bytes that this lane moved; known at the end
  std::optional<rank_id> peer{};  ///< the rank that a wait saw last, or the other end of a message
  errc fault = errc::ok;          ///< the failure that ended the operation or the wait

  /// Returns the present time in the unit of `begun` and `ended`: that of `deadline::now`.
  /// Exact to a microsecond, and mostly to a tenth of that.
  /// Cost: reads the cpu's counter of ticks, or else the clock; no system call.
  [[nodiscard]] static std::int64_t now() noexcept {
    if (detail::clock_of_thread == nullptr) return detail::events_clock.now();
    return std::chrono::nanoseconds{deadline::now().time_since_epoch()}.count();
  }
  /// Returns the latest result of `now` on this thread, for an event that begins or ends just where
  /// another event of the thread has begun or ended. If time is simulated, ranks share a thread, so
  /// the clock is read.
  /// Cost: a load.
  [[nodiscard]] static std::int64_t latest() noexcept {
    return detail::clock_of_thread == nullptr ? detail::events_clock.latest() : now();
  }
};

/// The end of a wait, from which listeners get their event.
struct wait_end {
  std::uint64_t epoch = 0;        ///< the awaited value of the signals; 0 if there are none
  std::optional<rank_id> last{};  ///< the rank that came last; empty if none was missing
  errc fault = errc::ok;          ///< the failure of the wait
};

/// A receiver of the events of one rank, such as a recorder. `event_listeners::add` adds it to a
/// group (`membership::listeners`). All layers report to it: communicators, exchanges, teams and
/// channels.
///
/// The functions are called in the middle of operations. They must not wait, allocate or throw, and
/// must call no function of the group. An operation that fails also ends. The end of a failed wait
/// or message may be missing.
///
/// Threads: the functions may be called by all threads that use the group, several at once. Both
/// calls for one event come from one thread.
class event_listener {
 public:
  event_listener() = default;
  event_listener(const event_listener&) = delete;
  event_listener& operator=(const event_listener&) = delete;
  virtual ~event_listener() = default;

  /// Returns whether `on_begin` is to be called. Called once, when the listener is added.
  [[nodiscard]] virtual bool hears_begins() const noexcept { return true; }
  /// Receives the begin of `event`. Values that are only known at the end are not set yet.
  virtual void on_begin(const operation_event& event) noexcept = 0;
  /// Receives the end of `event`.
  virtual void on_end(const operation_event& event) noexcept = 0;
};

}  // namespace peerbus
