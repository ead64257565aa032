// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/decorator.hpp>

#include "failure.hpp"

namespace peerbus::c_library {

/// The function of the program that may end a wait.
struct interruption {
  peerbus_interrupt_function function = nullptr;
  void* context = nullptr;
};

/// A transport whose waits ask `interruption` about 20 times a second whether to go on. Requirement
/// 9 of `transport` allows a wait in slices.
template <class Inner>
class interruptible : public transport_decorator<Inner> {
 public:
  interruptible(Inner inner, std::shared_ptr<const interruption> stop)
      : transport_decorator<Inner>{std::move(inner)}, stop_{std::move(stop)} {}

  using window = typename transport_decorator<Inner>::window;

  [[nodiscard]] errc wait(const window& at, signal_id id, std::uint64_t value, deadline until,
                          std::optional<rank_id> awaited) noexcept {
    return in_slices(until, [&](deadline pause) noexcept {
      return this->inner().wait(at, id, value, pause, awaited);
    });
  }
  [[nodiscard]] errc wait_at(rank_id owner, const window& at, signal_id id, std::uint64_t value,
                             deadline until, std::optional<rank_id> awaited) noexcept {
    return in_slices(until, [&](deadline pause) noexcept {
      return this->inner().wait_at(owner, at, id, value, pause, awaited);
    });
  }

 private:
  /// Calls `wait_until(pause)` until it returns anything but a time-out, the program ends the wait,
  /// or the deadline has come.
  template <class Wait>
  errc in_slices(deadline until, Wait&& wait_until) noexcept {
    static constexpr std::chrono::milliseconds slice{50};
    if (stop_->function == nullptr) return wait_until(until);
    while (true) {
      const errc code = wait_until(deadline{std::min(until.when(), deadline::after(slice).when())});
      if (code != errc::timed_out || until.expired()) return code;
      if (stop_->function(stop_->context) != 0) {
        interrupted() = true;
        return errc::timed_out;
      }
    }
  }

  std::shared_ptr<const interruption> stop_;
};

}  // namespace peerbus::c_library
