// SPDX-License-Identifier: MIT
#pragma once

#include <mutex>
#include <optional>
#include <utility>

#include <peerbus/transport/registered/spin_guard.hpp>

namespace peerbus::detail::registered {

/// A value with a lock, which only one thread at a time can reach.
template <class Value>
class guarded {
 public:
  /// Access to the value. Holds the lock until it is destroyed.
  class access {
   public:
    [[nodiscard]] Value& operator*() const noexcept { return *value_; }
    [[nodiscard]] Value* operator->() const noexcept { return value_; }

   private:
    friend guarded;
    access(std::unique_lock<spin_guard> held, Value& value) noexcept
        : held_{std::move(held)}, value_{&value} {}
    std::unique_lock<spin_guard> held_;
    Value* value_;
  };

  [[nodiscard]] access lock() noexcept { return {std::unique_lock{guard_}, value_}; }
  /// Returns access to the value, or nothing if another thread has access.
  [[nodiscard]] std::optional<access> try_lock() noexcept {
    std::unique_lock held{guard_, std::try_to_lock};
    if (!held) return std::nullopt;
    return access{std::move(held), value_};
  }

 private:
  spin_guard guard_;
  Value value_;
};

}  // namespace peerbus::detail::registered
