// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>

#include <peerbus/collective/channel_map.hpp>
#include <peerbus/collective/detail/batch.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/copy.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/kernel/stream.hpp>

namespace peerbus::collective::detail {

/// The messages that a receiver tries to read although it could not read earlier ones.
inline constexpr unsigned most_unreadable = 3;

PEERBUS_INLINE void batch::begin() {
  static_cast<void>(to_self(true));
  left_ = static_cast<std::size_t>(std::ranges::count_if(
      messages_, [&](const transfer& message) { return message.peer() != on_.rank(); }));
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
  activity_ =
      members.begin_wait({.operation = group_operation::batch_send_recv, .number = on_.calls_});
  while (left_ != 0) {
    if (advance())
      idle_ = 0;
    else
      wait();
  }
  members.end_wait(activity_, {.last = awaited_});
  if (difference_) throw_mismatch();
}

PEERBUS_INLINE void batch::start() {
  report("start", [this] {
    begin();
    // No longer, because peers that keep up would keep this rank from returning.
    for (std::size_t pass = 0; pass < channel_map::generations && left_ != 0; ++pass) advance();
  });
  on_.is_pending_ = true;
}

PEERBUS_INLINE void batch::finish(const std::optional<deadline>& until) {
  if (!is_pending())
    throw error{errc::view_changed,
                "finish: the channels went on without ranks since batch_send_recv was started, "
                "which they have given up"};
  on_.is_pending_ = false;
  try {
    memory_.group().require_healthy("batch_send_recv", on_.view_);
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
          .fault = end.is_matched.value_or(true) ? errc::ok : errc::mismatch};
}

PEERBUS_ERROR_PATH void batch::abandon() noexcept {
  if (!is_pending()) return;
  on_.is_pending_ = false;
  take_back();
  if (memory_.group().view().number() != on_.view_) return;  // A later view gives them up.
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

PEERBUS_INLINE bool batch::may_read(rank_id peer, const channel_end& end) const noexcept {
  // The sender of a shorter message does not wait until it is received, only until it is expected.
  const std::size_t bytes = messages_[end.transfer].bytes().size();
  return memory_.is_near(peer) && bytes >= on_.options_.private_bytes &&
         bytes > channel_map::generations * memory_.map().slot_bytes;
}

PEERBUS_INLINE void batch::match(channel_end& end, const difference& both) {
  end.is_matched = both.sent == both.expected;
  if (!*end.is_matched && !difference_) difference_ = both;
}

PEERBUS_INLINE bool batch::push(rank_id peer) {
  channel_end& end = memory_.out(peer);
  if (!has_message(end)) return false;
  bool moved = false;
  const std::size_t line_at = memory_.map().line_at(peer, end.messages);
  if (!end.is_matched && memory_.value(peer, channel_signal::expected) > end.messages) {
    message_line line;
    std::memcpy(&line, memory_.own() + line_at, sizeof line);
    match(end, {on_.rank(), peer, end.messages, header_of(end), line.header});
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
    if (memory_.word(line_at) != end.messages + 1) end.done = bytes;
    moved = true;
  }
  if (!end.has_begun || !end.is_matched || (*end.is_matched && end.done < bytes)) return moved;
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
    memory_.store_word(peer, map.slot_at(on_.rank(), end.slices),
                       reinterpret_cast<std::uintptr_t>(left.data()));
    // Another core is to read what the caller may have streamed, and the release of the signal does
    // not order that.
    kernel::fence_streams();
  }
  require(memory_.write(peer, map.slot_at(on_.rank(), end.slices),
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
    require(memory_.write(peer, map.line_at(on_.rank(), end.messages),
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
  return end.has_begun && (!*end.is_matched || end.done == messages_[end.transfer].bytes().size());
}

PEERBUS_INLINE void batch::pull_slice(rank_id peer, channel_end& end) {
  const channel_map& map = memory_.map();
  const std::size_t slot_at = map.slot_at(peer, end.slices);
  const std::byte* const slot = memory_.own() + slot_at;
  std::size_t most = map.slot_bytes;
  if (!end.has_begun) {
    message_line sent;
    std::memcpy(&sent, slot, sizeof sent);
    match(end, {peer, on_.rank(), end.messages, sent.header, header_of(end)});
    end.has_begun = true;
    most = sent.bytes;
  }
  if (*end.is_matched) {
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

PEERBUS_INLINE void batch::read_rest(rank_id peer, channel_end& end, std::size_t slot) {
  const std::span<std::byte> left = messages_[end.transfer].output().subspan(end.done);
  const std::uint64_t address = memory_.word(slot);
  const errc code =
      address == 0 ? errc::peer_dead : memory_.get_private(peer, address + end.done, left);
  std::atomic_thread_fence(std::memory_order_acquire);  // order: see `take_back`.
  ++end.slices;
  end.is_read = false;
  if (code == errc::ok && memory_.word(slot) != 0) {
    end.done += left.size();
    return;
  }
  // Memory that cannot be read may be that of this message alone, as that of some devices.
  end.unreadable += code == errc::out_of_range ? 1 : most_unreadable;
  memory_.store_word(peer, memory_.map().line_at(on_.rank(), end.messages), end.messages + 1);
}

PEERBUS_ERROR_PATH void batch::take_back() noexcept {
  for (const rank_id peer : memory_.group().peers()) {
    const channel_end& end = memory_.out(peer);
    if (has_message(end) && end.has_begun && end.done < messages_[end.transfer].bytes().size() &&
        (!end.is_matched || end.is_read) && may_read(peer, end))
      memory_.store_word(peer, memory_.map().slot_at(on_.rank(), end.slices - 1), 0);
  }
  // order: seq_cst, before whatever the caller does to its messages next; pairs with the fence in
  // `read_rest`, which follows the read.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

PEERBUS_ERROR_PATH void batch::throw_mismatch() {
  const auto describe = [](const message_header& header) {
    return detail::describe(header.element, header.count);
  };
  throw error{errc::mismatch,
              peerbus::detail::concat(title(), " did not move message ", difference_->message,
                                      " from ", difference_->sender, " to ", difference_->receiver,
                                      ": ", difference_->sender, " sends ",
                                      describe(difference_->sent), ", ", difference_->receiver,
                                      " receives ", describe(difference_->expected))};
}

}  // namespace peerbus::collective::detail
