// SPDX-License-Identifier: MIT
#pragma once

#include <pthread.h>

#include <algorithm>
#include <bit>
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

/// Returns the number of the calling thread, as Python counts threads.
inline std::uint64_t this_thread_number() noexcept {
  const pthread_t self = ::pthread_self();
  static_assert(sizeof self == sizeof(std::uint64_t));
  return std::bit_cast<std::uint64_t>(self);
}

/// The function of the program that may end a wait.
struct interruption {
  peerbus_interrupt_function function = nullptr;
  void* context = nullptr;
  std::optional<std::uint64_t> thread;  ///< the thread whose waits call it; empty: every thread
  peerbus_python python{};              ///< if Python is asked, the context

  /// Returns whether waits of the calling thread call the function.
  [[nodiscard]] bool concerns_this_thread() const noexcept {
    return function != nullptr && (!thread || *thread == this_thread_number());
  }
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
    if (!stop_->concerns_this_thread()) return wait_until(until);
    while (true) {
      const errc code = wait_until(deadline{std::min(until.when(), deadline::after(slice).when())});
      if (code != errc::timed_out || until.expired()) return code;
      const bool before = interrupted();  // Calls that the function makes set it as well.
      const bool stops = stop_->function(stop_->context) != 0;
      interrupted() = before || stops;
      if (stops) return errc::timed_out;
    }
  }

  std::shared_ptr<const interruption> stop_;
};

}  // namespace peerbus::c_library
