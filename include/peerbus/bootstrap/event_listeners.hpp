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
/// Threads: any number of threads may tell events at once. The other functions must only be called
/// while no operation of the group runs.
class event_listeners {
 public:
  /// Adds `listener`, which from now on receives the events of this rank in the group. It
  /// receives events of an exchange only if that is made later, and of a team without all ranks
  /// only if that is made or resumed later. Remove the listener before it is destroyed. Peers in
  /// events have their numbers in this group, also if an exchange works in parts of it. A subgroup
  /// has listeners of its own.
  void add(event_listener& listener);
  /// Removes `listener`, which then receives no more events. Does nothing if it was not added.
  void remove(const event_listener& listener) noexcept;
  /// Sends the events of this group also to the listeners of `whole`, of which this group is a
  /// part. `ranks` has, for each rank of this group, its number in `whole`. Does nothing if `whole`
  /// has no listeners.
  void join(std::shared_ptr<const event_listeners> whole, std::vector<rank_id> ranks);

  /// Returns whether there may be listeners.
  /// Cost: a load.
  [[nodiscard]] bool any() const noexcept { return any_; }
  ///@{
  /// Tells all listeners that an event begins or ends.
  void tell_begin(const operation_event& event) const noexcept;
  void tell_end(const operation_event& event) const noexcept;
  ///@}

  ///@{
  /// Tells all listeners that `wait`, which `activity_line::begin` has recorded, begins or ends.
  /// `tell_begin` returns `wait` with the time of an exact clock. Pass this to `tell_end`.
  [[nodiscard]] detail::activity_line::begun tell_begin(
      const detail::activity_line::begun& wait) const noexcept;
  void tell_end(const detail::activity_line::begun& wait, const wait_end& end) const noexcept;
  ///@}

 private:
  /// Returns `event` with the rank of its peer in `whole_`.
  [[nodiscard]] operation_event in_whole(operation_event event) const noexcept;

  bool any_ = false;
  std::vector<event_listener*> listeners_;
  std::vector<event_listener*> begin_listeners_;  ///< the listeners that receive begins
  std::shared_ptr<const event_listeners> whole_;  ///< null if this group is no part of another
  std::vector<rank_id> ranks_;                    ///< the numbers in `whole_`
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/event_listeners.ipp>  // IWYU pragma: keep
#endif
