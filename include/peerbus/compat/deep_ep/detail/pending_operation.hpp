// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>

#include <peerbus/core/error.hpp>

namespace peerbus::deep_ep::detail {

/// The time at which a call's results become valid: before the call returns, or when the caller
/// calls its event or hook.
enum class delivery : std::uint8_t { immediate, event, hook };

/// Returns the delivery that a call asks for.
[[nodiscard]] constexpr delivery delivery_of(bool async_finish,
                                             bool return_recv_hook = false) noexcept {
  if (return_recv_hook) return delivery::hook;
  return async_finish ? delivery::event : delivery::immediate;
}

/// The owner of operations that were sent but not received, and of rows that were received but not
/// combined. Hooks, events and handles refer to it and may outlive it.
class pending_operations {
 public:
  pending_operations() = default;
  pending_operations(const pending_operations&) = delete;
  pending_operations& operator=(const pending_operations&) = delete;
  virtual ~pending_operations() = default;

  /// Receives operation `number`.
  /// Throws: `error`, also if the operation is not pending. The default always throws, for owners
  /// that never have a pending operation.
  virtual void receive(std::uint64_t) {
    throw error{errc::invalid_argument, "hook: nothing is to be received, expected no call"};
  }
  [[nodiscard]] virtual bool is_pending(std::uint64_t) const noexcept { return false; }

 private:
  friend class pending_operation;
  std::shared_ptr<pending_operations*> self_ = std::make_shared<pending_operations*>(this);
};

/// A reference to an operation that its owner numbers from 1, or to nothing. Does not keep the
/// owner alive.
class pending_operation {
 public:
  pending_operation() noexcept = default;
  pending_operation(const pending_operations* owner, std::uint64_t number) noexcept
      : owner_{owner->self_}, number_{number} {}

  [[nodiscard]] explicit operator bool() const noexcept { return number_ != 0; }
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  /// Returns the owner, or null if there never was one or it is gone.
  [[nodiscard]] pending_operations* owner() const noexcept {
    const auto alive = owner_.lock();
    return alive ? *alive : nullptr;
  }

 private:
  std::weak_ptr<pending_operations*> owner_;
  std::uint64_t number_ = 0;
};

}  // namespace peerbus::deep_ep::detail
