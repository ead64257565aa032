// SPDX-License-Identifier: MIT
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <peerbus/core/error.hpp>
#include <peerbus/transport/verbs/link.hpp>
#include <peerbus/transport/verbs/notice.hpp>
#include <peerbus/transport/verbs/pending_calls.hpp>
#include <peerbus/transport/verbs/rail_choice.hpp>
#include <peerbus/transport/verbs/request_chain.hpp>
#include <peerbus/transport/verbs/resources.hpp>
#include <peerbus/transport/verbs/send_notice.hpp>
#include <peerbus/transport/verbs/send_queue.hpp>

namespace peerbus::detail::rdma {

/// A sender of one slice of the pending calls of a link for bulk traffic, which never waits.
/// `post(queue)` posts the chain of a queue pair, and returns as `send_queue::post`.
///
/// Threads: the thread that has the lock of `out`.
template <class Post>
class slice {
 public:
  slice(const resources& own, link& peer_link, outgoing& out, Post post) noexcept
      : own_{&own},
        link_{&peer_link},
        out_{&out},
        post_{post},
        bytes_left_{own.options().bulk_slice} {}

  /// Notes calls of up to `bulk_slice` bytes in all, and posts them.
  /// Returns: whether anything was noted. Notes nothing if the queue pairs have no room.
  [[nodiscard]] bool send() noexcept {
    pending_calls& calls = link_->pending();
    if (!post_all()) return false;  // What an earlier slice has left.
    std::uint32_t whole = 0;
    while (whole < calls.count() && note(calls.first(whole))) ++whole;
    if (post_all() || whole == 0) {
      calls.note_sent(whole);
    } else {
      // A call that is removed would no longer remind anybody of these chains.
      calls.note_sent(whole - 1);
      calls.first().what = pending_call::kind::noted;
    }
    return has_noted_;
  }

  ///@{
  /// Makes room or posts, for `send_notice`, which is called only if there is room. Requests that
  /// the device does not take now stay in the chain.
  [[nodiscard]] errc make_room(send_queue& queue) noexcept {
    return has_room(queue) ? errc::ok : errc::unreachable;
  }
  [[nodiscard]] errc post(send_queue& queue) noexcept {
    static_cast<void>(post_(queue));
    return link_->failure().is_set() ? errc::unreachable : errc::ok;
  }
  ///@}

 private:
  /// Notes as much of `call` as there is room for.
  /// Returns: whether all of it is noted.
  [[nodiscard]] bool note(pending_call& call) noexcept {
    switch (call.what) {
      case pending_call::kind::noted: return true;
      case pending_call::kind::notice: return note_signal(call);
      case pending_call::kind::read: return note_parts(call, [&] { return note_read(call); });
      case pending_call::kind::write: return note_parts(call, [&] { return note_write(call); });
    }
    return true;
  }

  /// Calls `note_part()` until all of `call` is noted or the slice is full. It returns the length
  /// of the part that it has noted, or 0.
  template <class NotePart>
  [[nodiscard]] bool note_parts(pending_call& call, NotePart&& note_part) noexcept {
    while (call.bytes != 0) {
      const std::size_t length = bytes_left_ == 0 ? 0 : note_part();
      if (length == 0) return false;
      has_noted_ = true;
      call.memory += length;
      call.place.address += length;
      call.bytes -= length;
      bytes_left_ -= length;
    }
    return true;
  }

  [[nodiscard]] std::size_t note_write(const pending_call& call) noexcept {
    const std::size_t number = choose_queue(*own_, *link_, *out_, true);
    send_queue& queue = out_->queues[number];
    if (!has_room(queue)) return 0;
    const local_bytes part = part_of(call, number);
    const wire_place target = target_of(call, number);
    if (!queue.chain().extend_write(part, target))
      queue.chain().append(IBV_WR_RDMA_WRITE, part, target);
    out_->note_write(number);
    return part.length;
  }

  /// Notes the next part of a read. Reads are limited by their number, because this rank's device
  /// carries no bytes for them. Returns the length of the part, or 0.
  [[nodiscard]] std::size_t note_read(const pending_call& call) noexcept {
    send_queue& queue = out_->queues[0];
    const std::size_t most = own_->options().bulk_in_flight / own_->options().bulk_slice;
    if (!has_room(queue) || queue.count().in_flight() + queue.chain().count() >= most) return 0;
    const local_bytes part = part_of(call, 0);
    queue.chain().append(IBV_WR_RDMA_READ, part, target_of(call, 0));
    return part.length;
  }

  [[nodiscard]] bool note_signal(const pending_call& call) noexcept {
    for (std::size_t q = 0; q < link_->pairs().size(); ++q)
      if ((q == 0 || (out_->unsignalled >> (q - 1) & 1U) != 0) && !has_room(out_->queues[q]))
        return false;
    if (send_notice(*own_, *link_, *out_, call.raised, *this) != errc::ok) return false;
    has_noted_ = true;
    return true;
  }

  [[nodiscard]] local_bytes part_of(const pending_call& call, std::size_t queue) const noexcept {
    const std::size_t length = std::min({call.bytes, bytes_left_, own_->most_message_bytes()});
    return {reinterpret_cast<std::uintptr_t>(call.memory), static_cast<std::uint32_t>(length),
            (*call.key)[own_->rail_of(queue)]};
  }
  [[nodiscard]] wire_place target_of(const pending_call& call, std::size_t queue) const noexcept {
    return {call.place.address, call.place.key[own_->rail_of(queue)]};
  }

  [[nodiscard]] bool has_room(send_queue& queue) noexcept {
    return queue.has_room() || (post_(queue) == 0 && queue.has_room());
  }
  /// Posts all chains. Returns whether the devices have taken all noted requests.
  [[nodiscard]] bool post_all() noexcept {
    bool all = true;
    for (std::size_t q = 0; q < link_->pairs().size(); ++q)
      all = post_(out_->queues[q]) == 0 && all;
    return all;
  }

  const resources* own_;
  link* link_;
  outgoing* out_;
  Post post_;
  std::size_t bytes_left_;
  bool has_noted_ = false;
};

}  // namespace peerbus::detail::rdma
