// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <exception>

#include <peerbus/core/lane_pool.hpp>

namespace peerbus::detail {

PEERBUS_INLINE void lane_pool::job::operator()(std::size_t index) const noexcept {
  if (index >= shares) return;
  const auto [begin, end] = lane{index, shares}.share((items + granule - 1) / granule);
  const std::size_t first = begin * granule;
  const std::size_t last = std::min(end * granule, items);
  if (first < last) share_of(index, first, last);
}

PEERBUS_INLINE void lane_pool::carry_out_together(lane caller, operation_ref operation,
                                                  until_ref until, unfit_ref unfit,
                                                  const char* call) {
  const auto note_and_throw = [&](errc code, const std::string& text) {
    // order: relaxed; lane 0 only stops waiting for this lane, and reads nothing that it wrote.
    if (code == errc::timed_out) lost_.fetch_or(bit_of(caller.index), std::memory_order_relaxed);
    unfit(code, text);
  };
  team_.serial(
      caller, until(),
      [&] {
        lanes_ = caller.count;
        first_post_ = posts_;
      },
      note_and_throw, call);
  std::exception_ptr problem;
  if (caller.index == 0) {
    try {
      operation();
    } catch (...) {
      problem = std::current_exception();
    }
    post(nullptr);
    lanes_ = 1;
  } else {
    help(caller.index);
  }
  // All lanes are in this function, so they come at once, even if the operation took until the
  // deadline. Only one that threw above while lane 0 came does not.
  const auto patience = std::chrono::seconds{is_lost(~std::uint64_t{0}) ? 0 : 10};
  team_.serial(
      caller, caller.index == 0 ? deadline::after(patience) : deadline::never(),
      [&] {
        if (problem) std::rethrow_exception(problem);
      },
      unfit);
}

PEERBUS_INLINE void lane_pool::post(const job* given) noexcept {
  job_ = given;
  posted_.raise(++posts_);
}

PEERBUS_INLINE void lane_pool::share_together(const job& given) noexcept {
  post(&given);
  given(0);
  for (std::size_t index = 1; index < lanes_; ++index) {
    const auto health = [this, index]() noexcept {
      return is_lost(bit_of(index)) ? errc::timed_out : errc::ok;
    };
    // A lane that came does its share. One that has timed out instead never began with it.
    if (helped_[index].wait_at_least(posts_, deadline::never(), lane_barrier::thresholds, health) !=
        errc::ok)
      given(index);
  }
}

PEERBUS_INLINE void lane_pool::help(std::size_t index) noexcept {
  constexpr auto healthy = []() noexcept { return errc::ok; };
  for (std::uint64_t post = first_post_ + 1;; ++post) {
    // Lane 0 obeys the deadline in everything that it does, and lets the lanes go at the end.
    static_cast<void>(
        posted_.wait_at_least(post, deadline::never(), lane_barrier::thresholds, healthy));
    if (job_ == nullptr) return;
    (*job_)(index);
    helped_[index].raise(post);
  }
}

}  // namespace peerbus::detail
