// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus {

namespace detail {
/// The time that the latest `operation_event::now` of this thread returned.
inline constinit thread_local std::int64_t latest_event_time = 0;
}  // namespace detail

/// The kind of an `operation_event`.
enum class event_kind : std::uint8_t {
  operation,  ///< a call of this rank, or one of its two halves
  wait,       ///< a wait for other ranks
  step,       ///< the part of a lane in an operation: rows written, published or summed
  send,       ///< a message to a peer, from its turn in its channel until it is sent
  recv        ///< a message from a peer, likewise
};

/// A period in which a rank was in an operation or in a part of one. Parts lie within the period of
/// their operation on the same thread, except for messages, which may overlap each other.
struct operation_event {
  event_kind kind = event_kind::operation;  ///< what the period is
  group_wait what{};        ///< the operation, the phase, and the operation's sequence number
  const char* name = "";    ///< of the function or the part, a literal such as "dispatch_recv"
  std::size_t lane = 0;     ///< the lane that reports the event
  std::int64_t begun = 0;   ///< the begin, in nanoseconds of CLOCK_MONOTONIC
  std::int64_t ended = 0;   ///< the end, likewise; 0 while the event goes on
  std::uint64_t epoch = 0;  ///< the value of the awaited signals; 0 if there are none
  std::uint64_t bytes = 0;  ///< the bytes that this lane moved; known at the end
  std::optional<rank_id> peer{};  ///< the rank that a wait saw last, or the other end of a message
  errc fault = errc::ok;          ///< the failure that ended the operation or the wait

  /// Returns the time now, as `begun` and `ended` have it: that of `deadline::now`.
  /// Cost: a clock read without a system call.
  [[nodiscard]] static std::int64_t now() noexcept {
    const auto read = deadline::now().time_since_epoch();
    return detail::latest_event_time =
               std::chrono::duration_cast<std::chrono::nanoseconds>(read).count();
  }
  /// Returns what `now` returned to this thread last, for an event that begins or ends right where
  /// another one of the thread has begun or ended. Where time is simulated, ranks share a thread,
  /// and the clock is read.
  /// Cost: a load.
  [[nodiscard]] static std::int64_t latest() noexcept {
    return detail::clock_of_thread == nullptr ? detail::latest_event_time : now();
  }
};

/// The end of a wait, as listeners are told of it.
struct wait_end {
  std::uint64_t epoch = 0;        ///< the awaited value of the signals; 0 if there are none
  std::optional<rank_id> last{};  ///< the rank that came last; empty if none was missing
  errc fault = errc::ok;          ///< the failure of the wait
};

/// A receiver of the events of one rank, such as a recorder. `membership::add_listener` adds it to
/// a group. All layers report to it: communicators, exchanges, teams and channels.
///
/// The functions are called in the middle of operations, so they do not wait, allocate or throw,
/// and call nothing of the group. An operation that fails also ends. The end of a wait or of a
/// message that fails may be missing.
///
/// Threads: the functions may be called by all threads that use the group, several at once. Both
/// calls of one event come from one thread.
class event_listener {
 public:
  event_listener() = default;
  event_listener(const event_listener&) = delete;
  event_listener& operator=(const event_listener&) = delete;
  virtual ~event_listener() = default;

  /// Returns whether `on_begin` is called. Asked once, when the listener is added.
  [[nodiscard]] virtual bool hears_begins() const noexcept { return true; }
  /// Is told that `event` begins. What is known at the end only is not set yet.
  virtual void on_begin(const operation_event& event) noexcept = 0;
  /// Is told that `event` has ended.
  virtual void on_end(const operation_event& event) noexcept = 0;
};

}  // namespace peerbus
