// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

#include <peerbus/core/lane_barrier.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

PEERBUS_INLINE void lane_barrier::take_turn(lane caller, deadline until, step_ref step,
                                            unfit_ref unfit, const char* call) {
  if (caller.index >= caller.count || caller.count > max_lanes)
    unfit(errc::invalid_argument,
          concat("lane ", caller.index, " of ", caller.count,
                 ", expected an index below the count, at most ", max_lanes));
  if (caller.count == 1)
    return unfit(errc::invalid_argument, "lane 0 says that it is alone, but other lanes have come");
  const std::uint64_t turn = done_.value() + 1;
  member& own = members_[caller.index];
  // order: relaxed; it only detects two threads that give the same index, and publishes no data.
  if (own.claimed.exchange(turn, std::memory_order_relaxed) == turn)
    unfit(errc::invalid_argument, concat("lane ", caller.index, " came twice"));
  // order: relaxed; `came.raise` (release) publishes it, and lanes read it after `await`.
  own.count.store(caller.count, std::memory_order_relaxed);
  own.call.store(call, std::memory_order_relaxed);
  own.came.raise(turn);
  if (caller.index == 0) return lead(caller, turn, until, step, unfit);
  const counted waiting_lane{waiting_};
  await(members_[0].came, turn, until, 0, unfit);
  fit(caller, 0, unfit);
  // Lane 0 has called and obeys the deadline in everything that it does, so that this wait needs no
  // deadline. It would only wait forever if the thread of lane 0 were killed, and a process cannot
  // continue after that.
  static_cast<void>(done_.wait_at_least(turn, deadline::never(), thresholds, healthy));
  if (const auto& found = problem_of(turn)) found->raise();
}

PEERBUS_INLINE void lane_barrier::fit(lane caller, std::size_t other, unfit_ref unfit) const {
  // order: relaxed; pairs with the store in `take_turn`. `await` has acquired `came` of that lane,
  // which was raised after the store.
  const std::size_t other_count = members_[other].count.load(std::memory_order_relaxed);
  if (other_count != caller.count)
    unfit(errc::invalid_argument,
          concat("lane ", caller.index, " says that there are ", caller.count, " lanes, but lane ",
                 other, " says ", other_count));
}

PEERBUS_INLINE void lane_barrier::fit_call(std::size_t other, unfit_ref unfit) const {
  // order: relaxed, as in `fit`; lane 0 wrote its own.
  const char* const own_call = members_[0].call.load(std::memory_order_relaxed);
  const char* const call = members_[other].call.load(std::memory_order_relaxed);
  if (call == own_call) return;  // Hardly ever are equal names two literals.
  const auto describe = [](const char* name) {
    return name == nullptr ? std::string{"is inside a call"} : concat("calls ", name);
  };
  if (call == nullptr || own_call == nullptr || std::string_view{call} != own_call)
    unfit(errc::invalid_argument,
          concat("lane ", other, " ", describe(call), ", but lane 0 ", describe(own_call)));
}

PEERBUS_INLINE void lane_barrier::await(signal_word& arrival, std::uint64_t turn, deadline until,
                                        std::size_t other, unfit_ref unfit) {
  if (const errc code = arrival.wait_at_least(turn, until, thresholds, healthy); code != errc::ok)
    unfit(code, concat("lane ", other, " did not come in time"));
}

PEERBUS_INLINE void lane_barrier::lead(lane caller, std::uint64_t turn, deadline until,
                                       step_ref step, unfit_ref unfit) {
  std::optional<problem>& found = problem_of(turn);
  found.reset();
  try {
    for (std::size_t other = 1; other < caller.count; ++other) {
      await(members_[other].came, turn, until, other, unfit);
      fit(caller, other, unfit);
      fit_call(other, unfit);
    }
    step();
  } catch (const error& thrown) {
    found = problem{thrown.code(), {}, nullptr};
    try {
      found->text = thrown.text();
    } catch (const std::bad_alloc&) {
      found->other = std::current_exception();
    }
    done_.raise(turn);
    throw;
  } catch (...) {
    found = problem{errc::ok, {}, std::current_exception()};
    done_.raise(turn);
    throw;
  }
  done_.raise(turn);
}

}  // namespace peerbus::detail
