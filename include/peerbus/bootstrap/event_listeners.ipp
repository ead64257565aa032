// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include <peerbus/bootstrap/event_listeners.hpp>

namespace peerbus {

PEERBUS_INLINE void event_listeners::add(event_listener& listener) {
  begin_listeners_.reserve(begin_listeners_.size() + 1);  // So that nothing fails halfway.
  listeners_.push_back(&listener);
  if (listener.hears_begins()) begin_listeners_.push_back(&listener);
  any_ = true;
}

PEERBUS_INLINE void event_listeners::remove(const event_listener& listener) noexcept {
  std::erase(listeners_, &listener);
  std::erase(begin_listeners_, &listener);
  any_ = !listeners_.empty() || whole_ != nullptr;
}

PEERBUS_INLINE void event_listeners::join(std::shared_ptr<const event_listeners> whole,
                                          std::vector<rank_id> ranks) {
  if (!whole->any()) return;
  whole_ = std::move(whole);
  ranks_ = std::move(ranks);
  any_ = true;
}

PEERBUS_INLINE operation_event event_listeners::in_whole(operation_event event) const noexcept {
  if (event.peer) event.peer = ranks_[event.peer->index()];
  return event;
}

PEERBUS_INLINE void event_listeners::tell_begin(const operation_event& event) const noexcept {
  for (event_listener* const listener : begin_listeners_) listener->on_begin(event);
  if (whole_ != nullptr) whole_->tell_begin(in_whole(event));
}

PEERBUS_INLINE void event_listeners::tell_end(const operation_event& event) const noexcept {
  for (event_listener* const listener : listeners_) listener->on_end(event);
  if (whole_ != nullptr) whole_->tell_end(in_whole(event));
}

PEERBUS_INLINE detail::activity_line::begun event_listeners::tell_begin(
    const detail::activity_line::begun& wait) const noexcept {
  const std::int64_t begun = operation_event::now();
  if (begin_listeners_.empty() && whole_ == nullptr) return {wait.word, begun};
  const group_wait what = detail::activity_line::decode(wait.word);
  tell_begin(
      {.kind = event_kind::wait, .what = what, .name = name_of(what.operation), .begun = begun});
  return {wait.word, begun};
}

PEERBUS_INLINE void event_listeners::tell_end(const detail::activity_line::begun& wait,
                                              const wait_end& end) const noexcept {
  const group_wait what = detail::activity_line::decode(wait.word);
  tell_end({.kind = event_kind::wait,
            .what = what,
            .name = name_of(what.operation),
            .begun = wait.since,
            .ended = operation_event::now(),
            .epoch = end.epoch,
            .peer = end.last,
            .fault = end.fault});
}

}  // namespace peerbus
