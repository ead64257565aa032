// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <vector>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/event_listener.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus {

/// The listeners of one rank of a group (`membership::listeners`).
///
/// Threads: events are told by any number of threads at once; the other functions are called while
/// no operation of the group runs.
class event_listeners {
 public:
  /// Makes this rank tell `listener` of its events in the group. Exchanges tell it only if they are
  /// made afterwards, teams without all ranks if they are made or resumed. Remove the listener
  /// before it is destroyed. Peers of events have their numbers in this group, also where an
  /// exchange relays in parts of it. A subgroup has listeners of its own.
  void add(event_listener& listener);
  /// Makes this rank not tell `listener` any more. Does nothing if it was not added.
  void remove(const event_listener& listener) noexcept;
  /// Makes the listeners of `whole` hear the events of this group, which is a part of that group.
  /// `ranks` are the numbers there of the ranks of this group. Does nothing if `whole` has none.
  void join(std::shared_ptr<const event_listeners> whole, std::vector<rank_id> ranks);

  /// Returns whether somebody may listen.
  /// Cost: a load.
  [[nodiscard]] bool any() const noexcept { return any_; }
  ///@{
  /// Tells all listeners that an event begins or ends.
  void tell_begin(const operation_event& event) const noexcept;
  void tell_end(const operation_event& event) const noexcept;
  ///@}

  ///@{
  /// Tells all listeners that `wait`, which `activity_line::begin` has recorded, begins or ends.
  /// `tell_begin` returns it with the time of an exact clock, as `tell_end` needs it.
  [[nodiscard]] detail::activity_line::begun tell_begin(
      const detail::activity_line::begun& wait) const noexcept;
  void tell_end(const detail::activity_line::begun& wait, const wait_end& end) const noexcept;
  ///@}

 private:
  /// Returns the event as the listeners of `whole_` know its ranks.
  [[nodiscard]] operation_event in_whole(operation_event event) const noexcept;

  bool any_ = false;
  std::vector<event_listener*> listeners_;
  std::vector<event_listener*> begin_listeners_;  ///< those that hear begins
  std::shared_ptr<const event_listeners> whole_;  ///< null if this group is no part of another
  std::vector<rank_id> ranks_;                    ///< the numbers in `whole_`
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/event_listeners.ipp>  // IWYU pragma: keep
#endif
