// SPDX-License-Identifier: MIT
#pragma once

#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/error.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/fabric/backlog.hpp>
#include <peerbus/transport/fabric/link.hpp>
#include <peerbus/transport/fabric/network.hpp>
#include <peerbus/transport/fabric/notice.hpp>
#include <peerbus/transport/fabric/registration.hpp>
#include <peerbus/transport/fabric/request_ring.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/registered/guarded.hpp>
#include <peerbus/transport/registered/own_part.hpp>

namespace peerbus::detail::ofi {

/// A thread's turn at sending over one link. Other threads wait for their turn meanwhile, also
/// while this one waits for room.
///
/// Each call returns ok, timed_out if there was no room for long, unreachable, or peer_dead.
class turn {
 public:
  turn(network& net, link& to) noexcept : net_{&net}, link_{&to}, out_{to.out().lock()} {}

  /// Posts a write of `source`, registered under `key`, to `target`.
  [[nodiscard]] errc write(std::span<const std::byte> source, void* key,
                           const remote_place& target) noexcept {
    out_->unproven = true;
    // Where order is not promised, only its completion shows that the peer can see a write.
    const std::uint64_t flags =
        net_->own().relies_on_order() ? FI_COMPLETION : FI_COMPLETION | FI_DELIVERY_COMPLETE;
    return in_messages(source.size(), [&](std::size_t begin, std::size_t length) {
      if (const errc code = make_room(backlog::write_weight + length); code != errc::ok)
        return code;
      const iovec local{const_cast<std::byte*>(source.data()) + begin, length};
      const fi_rma_iov remote{target.address + begin, length, target.key};
      return track([&](request& next) noexcept {
        fi_msg_rma message{&local, &key, 1, link_->address(), &remote, 1, &next.context, 0};
        return fi_writemsg(&net_->own().endpoint(), &message, flags);
      });
    });
  }

  /// Posts writes of `pieces`, which `part.check` has accepted, to the peer's part. Pieces that lie
  /// side by side at both ends become one request.
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
  /// Posts a write as `write_run` does, and the notice of a signal behind it. A small put travels
  /// within the notice.
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
    return in_messages(target.size(), [&](std::size_t begin, std::size_t length) {
      return track([&](request& next) noexcept {
        return fi_read(&net_->own().endpoint(), target.data() + begin, length, key,
                       link_->address(), source.address + begin, source.key, &next.context);
      });
    });
  }

  /// Sends the notice of a signal, with `payload`, behind everything that was put.
  [[nodiscard]] errc notify(const notice& head, std::span<const std::byte> payload) noexcept {
    if (const errc code = make_room(backlog::notice_weight); code != errc::ok) return code;
    // A signal alone is no put, which `quiet` would have to wait for.
    out_->unproven |= !payload.empty();
    if (!net_->own().relies_on_order())
      if (const errc code = finish_requests(); code != errc::ok) return code;
    return submit([&]() noexcept { return link_->post(*out_, head, payload.data()); });
  }

  /// Asks the peer for a proof that it can see all puts before, unless there were none since the
  /// last proof. `number` tells which proof, for `link::has_proven`.
  [[nodiscard]] errc ask_for_proof(std::uint64_t& number) noexcept {
    if (out_->unproven && !net_->own().relies_on_order())
      if (const errc code = finish_requests(); code != errc::ok) return code;
    const errc code = submit([&]() noexcept { return link_->ask_for_proof(*out_); });
    number = out_->proof;
    return code;
  }

 private:
  /// Calls `post(begin, length)` for parts that a message can hold.
  template <class Post>
  [[nodiscard]] errc in_messages(std::size_t bytes, Post&& post) noexcept {
    const std::size_t most = net_->own().info().ep_attr->max_msg_size;
    for (std::size_t begin = 0; begin < bytes; begin += std::min(most, bytes - begin))
      if (const errc code = post(begin, std::min(most, bytes - begin)); code != errc::ok)
        return code;
    return errc::ok;
  }

  /// Posts a request that completes. `post(request)` returns as libfabric's calls do.
  template <class Post>
  [[nodiscard]] errc track(Post&& post) noexcept {
    request_ring& requests = link_->requests();
    const errc code = submit([&]() noexcept -> long {
      return requests.has_room() ? post(requests.next()) : -FI_EAGAIN;
    });
    if (code == errc::ok) requests.note_posted();
    return code;
  }

  /// Calls `post()`, which returns as libfabric's calls do, again while there is no room.
  template <class Post>
  [[nodiscard]] errc submit(Post&& post) noexcept {
    // A rank that only sends has to take arrivals now and then too.
    if (++out_->posts % 32 == 0) {
      net_->look();
      answer();
    }
    if (link_->failure().is_set() || link_->has_left()) return net_->why_broken(*link_);
    long failed = post();
    if (failed == -FI_EAGAIN) {
      const errc code = stall([&]() noexcept {
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

  /// Counts a message that is sent next. Before that, waits until the peer has taken enough of what
  /// was sent earlier.
  [[nodiscard]] errc make_room(std::size_t weight) noexcept {
    if (out_->untaken.needs_question()) {
      const errc asked = submit([&]() noexcept { return link_->ask(*out_); });
      if (asked != errc::ok) return asked;
      if (out_->asked >= backlog::most_open) {
        const std::uint64_t number = out_->asked - backlog::most_open + 1;
        const errc code =
            stall([&]() noexcept { return link_->has_proven(number) || link_->has_left(); });
        if (code != errc::ok) return code;
      }
    }
    out_->untaken.add(weight);
    return errc::ok;
  }

  [[nodiscard]] errc finish_requests() noexcept {
    return stall([&]() noexcept { return link_->requests().is_idle(); });
  }

  /// Contract as `network::stall`. Meanwhile answers the peer: two ranks may wait for each other's
  /// answers, and other threads cannot answer because this turn has the link.
  template <class Done>
  [[nodiscard]] errc stall(Done&& done) noexcept {
    return net_->stall(*link_, [&]() noexcept {
      if (done()) return true;
      answer();
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
