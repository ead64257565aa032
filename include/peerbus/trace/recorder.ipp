// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <memory>

#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/trace/recorder.hpp>

namespace peerbus {

PEERBUS_INLINE recorder::recorder(const recorder_options& options)
    : events_{options.events}, rings_(options.threads) {
  if (options.events == 0 || options.threads == 0)
    throw error{errc::invalid_argument,
                detail::concat("recorder: ", options.events, " events of ", options.threads,
                               " threads, expected at least 1 of each")};
  for (ring& each : rings_) each.events = std::make_unique<line[]>(events_);
}

PEERBUS_INLINE recorder::line::line(const operation_event& event) noexcept
    : name{event.name},
      begun{event.begun},
      ended{event.ended},
      number{event.what.number},
      epoch{event.epoch},
      bytes{event.bytes},
      lane{static_cast<std::uint32_t>(event.lane)},
      peer{static_cast<std::uint32_t>(event.peer.value_or(rank_id{}).index())},
      operation{event.what.operation},
      phase{event.what.phase},
      kind{event.kind},
      has_peer{event.peer.has_value()},
      fault{event.fault} {}

PEERBUS_INLINE operation_event recorder::line::event() const noexcept {
  operation_event made{.kind = kind,
                       .what = {operation, phase, number},
                       .name = name,
                       .lane = lane,
                       .begun = begun,
                       .ended = ended,
                       .epoch = epoch,
                       .bytes = bytes,
                       .fault = fault};
  if (has_peer) made.peer = rank_id{peer};
  return made;
}

PEERBUS_INLINE recorder::ring* recorder::find_ring() noexcept {
  thread_local const char of_this_thread = 0;
  const void* const self = &of_this_thread;
  for (ring& each : rings_) {
    // order: relaxed; only the owner uses the rest of a ring. A thread that begins where an earlier
    // one had its variable goes on in its ring, after it.
    const void* owner = each.owner.load(std::memory_order_relaxed);
    if (owner == self) return &each;
    if (owner == nullptr &&
        each.owner.compare_exchange_strong(owner, self, std::memory_order_relaxed))
      return &each;
  }
  return nullptr;
}

PEERBUS_INLINE void recorder::on_end(const operation_event& event) noexcept {
  ring* const own = find_ring();
  if (own == nullptr) {
    refused_.fetch_add(1, std::memory_order_relaxed);  // order: relaxed; guards no other data.
    return;
  }
  std::construct_at(&own->events[own->next], event);
  own->next = own->next + 1 == events_ ? 0 : own->next + 1;
  ++own->written;
}

PEERBUS_INLINE std::vector<std::vector<operation_event>> recorder::read() const {
  std::vector<std::vector<operation_event>> all;
  all.reserve(rings_.size());
  for (const ring& each : rings_) {
    if (each.written == 0) continue;
    const std::size_t kept = std::min<std::uint64_t>(each.written, events_);
    auto& found = all.emplace_back();
    found.reserve(kept);
    for (std::size_t i = 0; i < kept; ++i) found.push_back(each.events[i].event());
    std::sort(found.begin(), found.end(), [](const operation_event& a, const operation_event& b) {
      return a.begun != b.begun ? a.begun < b.begun : a.ended > b.ended;
    });
  }
  return all;
}

PEERBUS_INLINE std::uint64_t recorder::lost() const noexcept {
  std::uint64_t sum = refused_.load(std::memory_order_relaxed);  // order: relaxed; as `on_end`.
  for (const ring& each : rings_)
    if (each.written > events_) sum += each.written - events_;
  return sum;
}

}  // namespace peerbus
