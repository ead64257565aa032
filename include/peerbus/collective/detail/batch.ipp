// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstring>

#include <peerbus/collective/channel_map.hpp>
#include <peerbus/collective/detail/batch.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/copy.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/kernel/stream.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE void batch::begin() {
  static_cast<void>(to_self(true));
  left_ = static_cast<std::size_t>(std::ranges::count_if(
      messages_, [&](const transfer& message) { return message.peer() != channels_.rank(); }));
  for (const rank_id peer : memory_.group().peers()) {
    find_next(memory_.out(peer), peer, true, 0);
    find_next(memory_.in(peer), peer, false, 0);
  }
}

PEERBUS_INLINE bool batch::advance() {
  bool moved = false;
  for (const rank_id peer : memory_.group().peers()) {
    if (push(peer)) moved = true;
    if (pull(peer)) moved = true;
  }
  return moved;
}

PEERBUS_INLINE void batch::complete() {
  const membership& members = *memory_.group().members();
  activity_ = members.begin_wait(
      {.operation = group_operation::batch_send_recv, .number = channels_.calls_});
  while (left_ != 0) {
    if (advance())
      idle_ = 0;
    else
      wait();
  }
  members.end_wait(activity_, {.last = awaited_});
  if (unmoved_) throw_unmoved();
}

PEERBUS_INLINE void batch::start() {
  report("start", [this] {
    begin();
    // No longer, because peers that keep up would keep this rank from returning.
    for (std::size_t pass = 0; pass < channel_map::generations && left_ != 0; ++pass) advance();
  });
  channels_.is_pending_ = true;
}

PEERBUS_INLINE void batch::finish(const std::optional<deadline>& until) {
  if (!is_pending())
    throw error{errc::view_changed,
                "finish: the channels went on without ranks since batch_send_recv was started, "
                "which they have given up"};
  channels_.is_pending_ = false;
  try {
    memory_.group().require_healthy("batch_send_recv", channels_.view_);
  } catch (...) {
    take_back();
    throw;
  }
  if (until) until_ = until;
  report("finish", [this] { complete(); });
}

PEERBUS_INLINE operation_event batch::event_of(const channel_end& end, rank_id peer,
                                               bool sends) const noexcept {
  return {.kind = sends ? event_kind::send : event_kind::recv,
          .what = {.operation = group_operation::batch_send_recv, .number = end.messages},
          .name = sends ? "send" : "recv",
          .begun = end.since,
          .bytes = messages_[end.transfer].bytes().size(),
          .peer = peer,
          .fault = end.fault};
}

PEERBUS_ERROR_PATH void batch::abandon() noexcept {
  if (!is_pending()) return;
  channels_.is_pending_ = false;
  take_back();
  if (memory_.group().view().number() != channels_.view_) return;  // A later view gives them up.
  try {
    memory_.group().poison(title() + " was started and never finished");
  } catch (...) {
    memory_.group().poison("not finished");  // So short that it takes no memory.
  }
}

PEERBUS_INLINE void batch::find_next(channel_end& end, rank_id peer, bool sends,
                                     std::size_t first) noexcept {
  end.transfer = first;
  end.done = 0;
  end.has_begun = false;
  end.is_matched.reset();
  end.is_read = false;
  end.is_unreadable = false;
  end.fault = errc::ok;
  while (has_message(end) &&
         (messages_[end.transfer].peer() != peer || messages_[end.transfer].sends() != sends))
    ++end.transfer;
  if (listeners().any() && has_message(end)) {
    end.since = operation_event::now();
    listeners().tell_begin(event_of(end, peer, sends));
  }
}

PEERBUS_INLINE void batch::finish(channel_end& end, rank_id peer, bool sends) noexcept {
  --left_;
  if (listeners().any()) {
    operation_event event = event_of(end, peer, sends);
    event.ended = operation_event::now();
    listeners().tell_end(event);
  }
  ++end.messages;
  find_next(end, peer, sends, end.transfer + 1);
}

PEERBUS_INLINE message_header batch::header_of(const channel_end& end) const noexcept {
  const transfer& message = messages_[end.transfer];
  return {message.element(), message.bytes().size() / message.element().bytes};
}

PEERBUS_INLINE void batch::match(channel_end& end, const unmoved_message& both) {
  end.is_matched = both.sent == both.expected;
  if (!*end.is_matched) leave_unmoved(end, both);
}

PEERBUS_INLINE void batch::leave_unmoved(channel_end& end,
                                         const unmoved_message& message) noexcept {
  end.fault = message.reason;
  if (!unmoved_) unmoved_ = message;
}

PEERBUS_INLINE bool batch::push(rank_id peer) {
  channel_end& end = memory_.out(peer);
  if (!has_message(end)) return false;
  bool moved = false;
  const std::size_t line_at = memory_.map().line_at(peer, end.messages);
  if (!end.is_matched && memory_.value(peer, channel_signal::expected) > end.messages) {
    message_line line;
    std::memcpy(&line, memory_.own() + line_at, sizeof line);
    match(end, {channels_.rank(), peer, end.messages, header_of(end), line.header});
    end.is_read = *end.is_matched && line.is_read != 0;
    moved = true;
  }
  // The receiver discards the first slice of a message that it does not expect. So further ones
  // leave only when both ends agree.
  const std::size_t bytes = messages_[end.transfer].bytes().size();
  const bool has_slice =
      !end.has_begun || (end.is_matched.value_or(false) && end.done < bytes && !end.is_read);
  const std::uint64_t taken = memory_.value(peer, channel_signal::taken);
  if (has_slice && end.slices - taken < channel_map::generations) {
    push_slice(peer, end);
    moved = true;
  } else if (end.has_begun && end.is_read && taken > end.slices) {
    ++end.slices;  // The read counts as a slice.
    end.is_read = false;
    if (memory_.word(line_at) == end.messages + 1)
      refuse_unmapped(peer, end);
    else
      end.done = bytes;
    moved = true;
  }
  const bool lacks_bytes = end.fault == errc::ok && end.done < bytes;
  if (!end.has_begun || !end.is_matched || lacks_bytes) return moved;
  finish(end, peer, true);
  return true;
}

PEERBUS_INLINE void batch::push_slice(rank_id peer, channel_end& end) {
  const channel_map& map = memory_.map();
  const std::span<const std::byte> left = messages_[end.transfer].input().subspan(end.done);
  const std::span<const std::byte> slice =
      left.first(end.is_read ? 0 : std::min(left.size(), map.slot_bytes));
  const message_line line{.header = header_of(end), .bytes = slice.size()};
  if (!end.has_begun && may_read(peer, end)) {
    memory_.store_word(peer, map.slot_at(channels_.rank(), end.slices),
                       reinterpret_cast<std::uintptr_t>(left.data()));
    // Another core is to read what the caller may have streamed, and the release of the signal does
    // not order that.
    kernel::fence_streams();
  }
  require(memory_.write(peer, map.slot_at(channels_.rank(), end.slices),
                        map.staging_at() + map.slot_at(peer, end.slices),
                        end.has_begun ? nullptr : &line, slice));
  require(memory_.raise(peer, channel_signal::sent, ++end.slices));
  end.done += slice.size();
  end.has_begun = true;
}

PEERBUS_INLINE bool batch::pull(rank_id peer) {
  channel_end& end = memory_.in(peer);
  if (!has_message(end)) return false;
  bool moved = false;
  if (!end.has_begun && !end.is_matched) {
    end.is_read = may_read(peer, end) && end.unreadable < most_unreadable;
    const channel_map& map = memory_.map();
    const message_line line{.header = header_of(end), .is_read = end.is_read ? 1U : 0U};
    require(memory_.write(peer, map.line_at(channels_.rank(), end.messages),
                          map.staging_at() + map.line_at(peer, end.messages), &line, {}));
    require(memory_.raise(peer, channel_signal::expected, end.messages + 1));
    end.is_matched = true;  // Until the first slice says otherwise.
    moved = true;
  }
  if (memory_.value(peer, channel_signal::sent) > end.slices) {
    pull_slice(peer, end);
    moved = true;
  }
  if (is_complete(end)) finish(end, peer, false);
  return moved;
}

PEERBUS_INLINE bool batch::is_complete(const channel_end& end) const noexcept {
  return end.has_begun &&
         (end.fault != errc::ok || end.done == messages_[end.transfer].bytes().size());
}

PEERBUS_INLINE void batch::pull_slice(rank_id peer, channel_end& end) {
  const channel_map& map = memory_.map();
  const std::size_t slot_at = map.slot_at(peer, end.slices);
  const std::byte* const slot = memory_.own() + slot_at;
  std::size_t most = map.slot_bytes;
  if (!end.has_begun) {
    message_line sent;
    std::memcpy(&sent, slot, sizeof sent);
    match(end, {peer, channels_.rank(), end.messages, sent.header, header_of(end)});
    end.has_begun = true;
    most = sent.bytes;
  } else if (end.is_unreadable && memory_.word(slot_at) == channel_map::unmapped(end.messages)) {
    note_unmapped(peer, end);
  }
  if (end.fault == errc::ok) {
    const std::span<std::byte> left = messages_[end.transfer].output().subspan(end.done);
    const std::size_t bytes = std::min(left.size(), most);
    peerbus::detail::copy_bytes(left.data(), slot + channel_map::header_bytes, bytes);
    end.done += bytes;
    if (end.is_read) read_rest(peer, end, slot_at);
  }
  const errc code = memory_.raise(peer, channel_signal::taken, ++end.slices);
  // A sender whose last slice has arrived waits for nothing more, and may be gone.
  if (!is_complete(end)) require(code);
}

}  // namespace peerbus::collective::detail
