// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/bootstrap/event_listener.hpp>
#include <peerbus/bootstrap/event_listeners.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus::detail {

/// Calls `work(event)` and tells `listeners` when `event` begins and ends. `work` may set
/// only members whose values are known at the end. If `work` throws, the code of the error becomes
/// the fault of the event. A begin or an end that is already set stays.
/// Returns: the result of `work`.
/// Throws: whatever `work` throws.
/// Cost: a clock read for a begin or an end that is not set, and the cost of the listeners.
template <class Work>
auto reported(const event_listeners& listeners, operation_event event, Work&& work) {
  if (event.begun == 0) event.begun = operation_event::now();
  listeners.tell_begin(event);
  struct end_of_event {
    const event_listeners& listeners;
    operation_event& event;
    end_of_event(const event_listeners& group, operation_event& operation) noexcept
        : listeners{group}, event{operation} {}
    end_of_event(const end_of_event&) = delete;
    end_of_event& operator=(const end_of_event&) = delete;
    ~end_of_event() {
      if (event.ended == 0) event.ended = operation_event::now();
      listeners.tell_end(event);
    }
  };
  const end_of_event end{listeners, event};
  try {
    return work(event);
  } catch (const error& problem) {
    event.fault = problem.code();
    throw;
  } catch (...) {
    event.fault = errc::system;
    throw;
  }
}

}  // namespace peerbus::detail
