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

/// Returns how often this process has become a child by fork since the library was loaded.
/// Cost: a load.
std::uint64_t fork_count() noexcept;

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
  /// or the deadline has come. Waits that are shorter than a slice count together.
  template <class Wait>
  errc in_slices(deadline until, Wait&& wait_until) noexcept {
    static constexpr std::chrono::milliseconds slice{50};
    if (!stop_->concerns_this_thread()) return wait_until(until);
    waits& of_call = own_waits();
    if (!of_call.next_question) of_call.next_question = deadline::after(slice);
    while (true) {
      const errc code = wait_until(deadline{std::min(until.when(), of_call.next_question->when())});
      if (code != errc::timed_out) return code;
      if (of_call.are_ended || of_call.are_of_parent) return wait_ended;
      if (of_call.next_question->expired()) {
        const std::uint64_t forks = fork_count();
        const bool ends = stop_->function(stop_->context) != 0;
        const bool in_child = fork_count() != forks;
        // Calls that the function has made have changed it.
        of_call = {.are_ended = ends,
                   .are_of_parent = in_child && !ends,
                   .next_question = deadline::after(slice)};
        if (ends || in_child) return wait_ended;
      }
      if (until.expired()) return code;
    }
  }

  std::shared_ptr<const interruption> stop_;
};

}  // namespace peerbus::c_library
