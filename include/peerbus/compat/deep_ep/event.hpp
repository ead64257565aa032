// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::deep_ep {

namespace detail {

/// An operation that has been sent and waits to be received: what hooks and events refer to.
class pending_operations {
 public:
  pending_operations() = default;
  pending_operations(const pending_operations&) = delete;
  pending_operations& operator=(const pending_operations&) = delete;
  virtual ~pending_operations() = default;

  /// Receives operation `number`. Throws: `error`, also if it is not pending.
  virtual void receive(std::uint64_t number) = 0;
  [[nodiscard]] virtual bool is_pending(std::uint64_t number) const noexcept = 0;

 private:
  friend class pending_operation;
  std::shared_ptr<pending_operations*> self_ = std::make_shared<pending_operations*>(this);
};

/// One of them, of those that count from 1; empty if everything is received. May outlive its owner.
class pending_operation {
 public:
  pending_operation() noexcept = default;
  pending_operation(const pending_operations* owner, std::uint64_t number) noexcept
      : owner_{owner->self_}, number_{number} {}

  [[nodiscard]] explicit operator bool() const noexcept { return number_ != 0; }
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  /// Null if there never was one or it is gone.
  [[nodiscard]] pending_operations* owner() const noexcept {
    const auto alive = owner_.lock();
    return alive ? *alive : nullptr;
  }

 private:
  std::weak_ptr<pending_operations*> owner_;
  std::uint64_t number_ = 0;
};

}  // namespace detail

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
