// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/error.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/fabric/backlog.hpp>
#include <peerbus/transport/fabric/libfabric.hpp>
#include <peerbus/transport/fabric/link.hpp>
#include <peerbus/transport/fabric/network.hpp>
#include <peerbus/transport/fabric/notice.hpp>
#include <peerbus/transport/fabric/pending_calls.hpp>
#include <peerbus/transport/fabric/registration.hpp>
#include <peerbus/transport/fabric/slices.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/registered/guarded.hpp>
#include <peerbus/transport/registered/own_part.hpp>

namespace peerbus::detail::ofi {

/// A thread's turn at sending over one link. Other threads wait for their turn, also while this
/// thread waits for room. Over a link for bulk traffic, calls are noted and sent in slices later
/// (`send_slice`).
///
/// Each call returns ok, timed_out if there was no room for long, unreachable, or peer_dead.
class link_sender {
 public:
  link_sender(network& net, link& peer_link) noexcept
      : net_{&net}, link_{&peer_link}, out_{peer_link.out().lock()} {
    net.note_call();
  }

  /// Asks `peer` whether the connection lost anything, if a check is due.
  static void probe(network& net, rank_id peer) noexcept { net.probe(peer); }

  /// Posts a write of `source`, registered under `key`, to `target`.
  [[nodiscard]] errc write(std::span<const std::byte> source, void* key,
                           const remote_place& target) noexcept {
    if (is_bulk())
      return defer([&](pending_call& call) noexcept {
        call.what = pending_call::kind::write;
        call.memory = const_cast<std::byte*>(source.data());
        call.bytes = source.size();
        call.key = key;
        call.place = target;
      });
    out_->unacked = true;
    return in_messages(source.size(), [&](std::size_t begin, std::size_t length) {
      if (const errc code = make_room(backlog::write_weight + length); code != errc::ok)
        return code;
      return submit([&]() noexcept {
        return post_write(net_->own(), *link_, source.data() + begin, length, key,
                          {target.address + begin, target.key});
      });
    });
  }

  /// Posts writes of `pieces`, which `part.check_pieces` has accepted, to the peer's part. Pieces
  /// that are adjacent at both ends become one request.
  [[nodiscard]] errc write_run(const registered::own_part<network>& part,
                               std::span<const put_piece> pieces) noexcept {
    for (std::size_t i = 0; i < pieces.size();) {
      const auto [offset, first] = pieces[i];
      std::span<const std::byte> source = first;
      auto key = part.key_of(source);
      for (++i; i < pieces.size() && pieces[i].offset == offset + source.size() &&
                pieces[i].source.data() == source.data() + source.size();
           ++i) {
        const std::span longer{source.data(), source.size() + pieces[i].source.size()};
        // Neighbours in memory may lie in windows that are registered apart.
        const auto its_key = part.key_of(longer);
        if (!its_key) break;
        source = longer;
        key = its_key;
      }
      if (source.empty()) continue;
      if (!key) return errc::invalid_argument;
      if (const errc code = write(source, *key, part.place(link_->peer(), offset));
          code != errc::ok)
        return code;
    }
    return errc::ok;
  }
  /// Posts a write as `write_run` does, and then the notice of a signal. A small put travels within
  /// the notice.
  [[nodiscard]] errc put_signal(const registered::own_part<network>& part, const put_piece& piece,
                                signal_id id, std::uint64_t value) noexcept {
    notice head;
    head.window = part.number();
    head.id = id;
    head.value = value;
    if (piece.source.size() <= notice::most_payload) {
      head.bytes = static_cast<std::uint32_t>(piece.source.size());
      head.offset = piece.offset;
      return notify(head, piece.source);
    }
    if (const errc code = write_run(part, {&piece, 1}); code != errc::ok) return code;
    return notify(head, {});
  }

  /// Posts a read of `source` into `target`, registered under `key`.
  [[nodiscard]] errc read(std::span<std::byte> target, void* key,
                          const remote_place& source) noexcept {
    if (is_bulk())
      return defer([&](pending_call& call) noexcept {
        call.what = pending_call::kind::read;
        call.memory = target.data();
        call.bytes = target.size();
        call.key = key;
        call.place = source;
      });
    return in_messages(target.size(), [&](std::size_t begin, std::size_t length) {
      return submit([&]() noexcept {
        return post_read(*link_, target.data() + begin, length, key,
                         {source.address + begin, source.key});
      });
    });
  }

  /// Sends the notice of a signal, with `payload`, after all earlier puts.
  [[nodiscard]] errc notify(const notice& head, std::span<const std::byte> payload) noexcept {
    if (is_bulk())
      return defer([&](pending_call& call) noexcept {
        call.what = pending_call::kind::notice;
        call.head = head;
        std::copy(payload.begin(), payload.end(), call.payload.begin());
      });
    if (const errc code = make_room(backlog::notice_weight); code != errc::ok) return code;
    // A signal alone is no put, which `quiet` would have to wait for.
    out_->unacked |= !payload.empty();
    if (!net_->own().connects())
      if (const errc code = finish_requests(); code != errc::ok) return code;
    return submit([&]() noexcept { return link_->post(*out_, head, payload.data()); });
  }

  /// Asks the peer to acknowledge that it can see all earlier puts, unless there were none since
  /// the last request. Sets `number` to that of the acknowledgement, for `link::has_acked`.
  [[nodiscard]] errc request_ack(std::uint64_t& number) noexcept {
    if (is_bulk())
      if (const errc code = send_pending(); code != errc::ok) return code;
    if (out_->unacked && !net_->own().connects())
      if (const errc code = finish_requests(); code != errc::ok) return code;
    const errc code = submit([&]() noexcept { return link_->request_ack(*out_); });
    number = out_->ack;
    return code;
  }

 private:
  /// Calls `post(begin, length)` for each part of `bytes` bytes that fits into a message.
  template <class Post>
  [[nodiscard]] errc in_messages(std::size_t bytes, Post&& post) noexcept {
    const std::size_t most = net_->own().info().ep_attr->max_msg_size;
    for (std::size_t begin = 0; begin < bytes; begin += std::min(most, bytes - begin))
      if (const errc code = post(begin, std::min(most, bytes - begin)); code != errc::ok)
        return code;
    return errc::ok;
  }

  /// Returns whether calls are sent later, in slices.
  [[nodiscard]] bool is_bulk() const noexcept { return link_->pending().is_open(); }

  /// Adds a call, which `set` fills in, after the pending calls, and sends a slice of the first.
  /// Waits if there is no room.
  template <class Set>
  [[nodiscard]] errc defer(Set&& set) noexcept {
    pending_calls& calls = link_->pending();
    const errc code = submit([&]() noexcept -> long { return calls.has_room() ? 0 : -FI_EAGAIN; });
    if (code != errc::ok) return code;
    set(calls.next());
    calls.note_added();
    send();
    return errc::ok;
  }
  /// Waits until no call is pending.
  [[nodiscard]] errc send_pending() noexcept {
    const errc code =
        poll_until([&]() noexcept { return link_->pending().is_empty() || link_->has_left(); });
    return code == errc::ok && !link_->pending().is_empty() ? net_->why_broken(*link_) : code;
  }
  void send() noexcept { net_->send_slice_to(*link_, *out_); }

  /// Repeats `post()`, which returns as libfabric's calls do, while there is no room.
  template <class Post>
  [[nodiscard]] errc submit(Post&& post) noexcept {
    // A rank that only sends has to take arrivals now and then too.
    if (++out_->posts % 32 == 0) {
      net_->poll();
      answer();
    }
    if (link_->failure().is_set() || link_->has_left()) return net_->why_broken(*link_);
    long failed = post();
    if (failed == -FI_EAGAIN) {
      const errc code = poll_until([&]() noexcept {
        failed = post();
        return failed != -FI_EAGAIN || link_->has_left();
      });
      if (code != errc::ok) return code;
      if (failed == -FI_EAGAIN) return net_->why_broken(*link_);
    }
    if (failed == 0) return errc::ok;
    net_->break_link(*link_, failed);
    return net_->why_broken(*link_);
  }

  /// Waits until the peer has taken enough earlier messages, then counts a message that is sent
  /// next.
  [[nodiscard]] errc make_room(std::size_t weight) noexcept {
    if (out_->outstanding.needs_question()) {
      const errc asked = submit([&]() noexcept { return link_->ask(*out_); });
      if (asked != errc::ok) return asked;
      if (out_->asked >= backlog::most_open) {
        const std::uint64_t number = out_->asked - backlog::most_open + 1;
        const errc code =
            poll_until([&]() noexcept { return link_->has_acked(number) || link_->has_left(); });
        if (code != errc::ok) return code;
      }
    }
    out_->outstanding.add(weight);
    return errc::ok;
  }

  [[nodiscard]] errc finish_requests() noexcept {
    return poll_until([&]() noexcept { return link_->requests().is_idle(); });
  }

  /// Waits as `network::poll_until` does, and answers the peer meanwhile. Two ranks may wait for
  /// each other's answers, and other threads cannot answer because this turn has the link.
  template <class Done>
  [[nodiscard]] errc poll_until(Done&& done) noexcept {
    return net_->poll_until(*link_, [&]() noexcept {
      if (done()) return true;
      answer();
      send();
      return false;
    });
  }
  void answer() noexcept {
    const long failed = link_->answer(*out_);
    if (failed != 0 && failed != -FI_EAGAIN) net_->break_link(*link_, failed);
  }

  network* net_;
  link* link_;
  registered::guarded<outgoing>::access out_;
};

}  // namespace peerbus::detail::ofi
