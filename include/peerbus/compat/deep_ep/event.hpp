// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include <peerbus/compat/deep_ep/detail/pending_operation.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::deep_ep {

/// The second half of a low-latency call with `return_recv_hook`: it receives the rows of that
/// call. The outputs of the call are valid after the hook has been called. It must be called
/// exactly once, in the order of the calls, while the buffer exists.
class recv_hook {
 public:
  recv_hook() noexcept = default;
  /// Makes the hook of a pending call. Only the buffer uses this constructor.
  explicit recv_hook(detail::pending_operation operation) noexcept
      : operation_{std::move(operation)} {}

  /// Returns whether the hook belongs to a call and therefore must be called.
  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(operation_); }
  /// Waits for the rows and completes the outputs of the call.
  /// Throws: `error` invalid_argument if the hook was called before, the buffer or its memory for
  /// the call is gone, or the call had no hook; otherwise the errors of the call.
  void operator()() const {
    if (!operation_)
      throw error{errc::invalid_argument,
                  "hook: the call was made without return_recv_hook; expected one with it"};
    detail::pending_operations* const owner = operation_.owner();
    if (owner == nullptr)
      throw error{errc::invalid_argument,
                  "hook: its buffer is gone, or a clean_low_latency_buffer for another shape came "
                  "in between; expected it to be called once, before"};
    owner->receive(operation_.number());
  }

 private:
  detail::pending_operation operation_;
};

/// DeepEP's `EventOverlap`. With `async_finish`, the outputs of a call are valid after
/// `current_stream_wait`, which receives them. Without `async_finish` there is nothing to wait for.
/// Waiting again has no effect.
class event_overlap {
 public:
  event_overlap() noexcept = default;
  /// Makes the event of a pending call. Only the buffer uses this constructor.
  explicit event_overlap(detail::pending_operation operation) noexcept
      : operation_{std::move(operation)} {}

  /// Completes the outputs of the call if they are still pending.
  /// Throws: the errors of the call.
  void current_stream_wait() const {
    detail::pending_operations* const owner = operation_.owner();
    if (owner != nullptr && owner->is_pending(operation_.number()))
      owner->receive(operation_.number());
  }

 private:
  detail::pending_operation operation_;
};

}  // namespace peerbus::deep_ep
