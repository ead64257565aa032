// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include <peerbus/compat/deep_ep/detail/pending_operation.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::deep_ep {

/// The second half of a low-latency call with `return_recv_hook`: receives what the call sent. The
/// outputs that the call returned are valid once it has been called; it must be called exactly
/// once, in the order of the calls, before the buffer goes.
class recv_hook {
 public:
  recv_hook() noexcept = default;
  explicit recv_hook(detail::pending_operation of) noexcept : of_{std::move(of)} {}

  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(of_); }
  /// Throws: `error` invalid_argument if it was called before, or the call had no hook; else as the
  /// call itself.
  void operator()() const {
    if (!of_)
      throw error{errc::invalid_argument,
                  "hook: the call was made without return_recv_hook; expected one with it"};
    detail::pending_operations* const owner = of_.owner();
    if (owner == nullptr)
      throw error{errc::invalid_argument,
                  "hook: its buffer is gone, or a clean_low_latency_buffer for another shape came "
                  "in between; expected it to be called once, before"};
    owner->receive(of_.number());
  }

 private:
  detail::pending_operation of_;
};

/// What DeepEP's `EventOverlap` is: with `async_finish`, outputs are valid after
/// `current_stream_wait`, which receives them. Without, there is nothing to wait for. It need not
/// be called more than once, but may.
class event_overlap {
 public:
  event_overlap() noexcept = default;
  explicit event_overlap(detail::pending_operation of) noexcept : of_{std::move(of)} {}

  void current_stream_wait() const {
    detail::pending_operations* const owner = of_.owner();
    if (owner != nullptr && owner->is_pending(of_.number())) owner->receive(of_.number());
  }

 private:
  detail::pending_operation of_;
};

}  // namespace peerbus::deep_ep
