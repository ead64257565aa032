// SPDX-License-Identifier: MIT
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/registered/guarded.hpp>
#include <peerbus/transport/registered/own_part.hpp>
#include <peerbus/transport/verbs/control_map.hpp>
#include <peerbus/transport/verbs/defer.hpp>
#include <peerbus/transport/verbs/link.hpp>
#include <peerbus/transport/verbs/network.hpp>
#include <peerbus/transport/verbs/notice.hpp>
#include <peerbus/transport/verbs/options.hpp>
#include <peerbus/transport/verbs/pending_calls.hpp>
#include <peerbus/transport/verbs/rail.hpp>
#include <peerbus/transport/verbs/rail_choice.hpp>
#include <peerbus/transport/verbs/rail_keys.hpp>
#include <peerbus/transport/verbs/registration.hpp>
#include <peerbus/transport/verbs/request_chain.hpp>
#include <peerbus/transport/verbs/resources.hpp>
#include <peerbus/transport/verbs/send_notice.hpp>
#include <peerbus/transport/verbs/send_queue.hpp>

namespace peerbus::detail::rdma {

/// A thread's turn at sending over one link. It notes requests in the chains of the link's queue
/// pairs and posts them. Other threads wait for their turn, also while this thread waits for room
/// in a full queue. Over a link for bulk traffic, puts, gets and signals are noted as calls, and
/// sent in slices later (`slice`).
///
/// Each call returns ok, timed_out if a queue stayed full, unreachable, or peer_dead.
class link_sender {
 public:
  link_sender(network& net, link& peer_link) noexcept
      : link_sender{net, peer_link, peer_link.out().lock()} {}
  /// Returns a turn, or nothing if another thread has a turn.
  [[nodiscard]] static std::optional<link_sender> take_free(network& net,
                                                            link& peer_link) noexcept {
    auto out = peer_link.out().try_lock();
    if (!out) return std::nullopt;
    return link_sender{net, peer_link, std::move(*out)};
  }

  /// Lets the devices ask whether `peer` can still be reached, unless another thread has a turn.
  static void probe(network& net, rank_id peer) noexcept {
    if (auto free = take_free(net, net.to(peer))) free->probe();
  }

  /// Notes a write of `source`, registered under `key`, to `target`, and posts a chain that is long
  /// enough. Long writes are spread over the queue pairs. If there are several devices, all writes
  /// are spread over the devices.
  [[nodiscard]] errc write(std::span<const std::byte> source, const rail_keys* key,
                           const remote_place& target) noexcept {
    if (is_bulk())
      return defer(source.size(), [&](pending_call& call) noexcept {
        call.what = pending_call::kind::write;
        call.memory = const_cast<std::byte*>(source.data());
        call.bytes = source.size();
        call.key = key;
        call.place = target;
      });
    if (rails().size() > 1) return write_in_pieces(source, key, target);
    const std::size_t queues = link_->pairs().size();
    if (queues == 1 || source.size() < options().stripe_bytes)
      return write_on(0, source, key, target);
    // Whole pages to each, so that devices copy them well.
    constexpr std::size_t page = 4096;
    const std::size_t round = page * queues;
    const std::size_t stripe = (source.size() + round - 1) / round * page;
    for (std::size_t q = 0; q < queues && q * stripe < source.size(); ++q) {
      const std::size_t begin = q * stripe;
      const auto part = source.subspan(begin, std::min(stripe, source.size() - begin));
      if (const errc code = write_on(q, part, key, {target.address + begin, target.key});
          code != errc::ok)
        return code;
    }
    return errc::ok;
  }

  /// Notes writes of `pieces`, which `part.check_pieces` has accepted, to the peer's part.
  [[nodiscard]] errc write_run(const registered::own_part<network>& part,
                               std::span<const put_piece> pieces) noexcept {
    for (const auto& [offset, source] : pieces) {
      if (source.empty()) continue;
      const auto key = part.key_of(source);
      if (!key) return errc::invalid_argument;
      if (const errc code = write(source, *key, part.place(link_->peer(), offset));
          code != errc::ok)
        return code;
    }
    return errc::ok;
  }
  /// Notes a write as `write_run` does, and sends the notice of a signal. The write's own request
  /// carries the notice if it can.
  [[nodiscard]] errc put_signal(const registered::own_part<network>& part, const put_piece& piece,
                                signal_id id, std::uint64_t value) noexcept {
    if (const errc code = write_run(part, {&piece, 1}); code != errc::ok) return code;
    return notify({part.number(), id, value});
  }

  /// Notes a read of `source` into `target`, registered under `key`.
  [[nodiscard]] errc read(std::span<std::byte> target, const rail_keys* key,
                          const remote_place& source) noexcept {
    if (is_bulk())
      return defer(at_once, [&](pending_call& call) noexcept {
        call.what = pending_call::kind::read;
        call.memory = target.data();
        call.bytes = target.size();
        call.key = key;
        call.place = source;
      });
    return in_messages(0, target, key, source,
                       [this](const local_bytes& part, const wire_place& from) {
                         return append(first(), IBV_WR_RDMA_READ, part, from);
                       });
  }

  /// Notes and posts an atomic addition to `word`. The device writes the value before the addition
  /// to `result`.
  [[nodiscard]] errc add(const local_bytes& result, const remote_place& word,
                         std::uint64_t addend) noexcept {
    if (const errc code = make_room(first()); code != errc::ok) return code;
    append_add(first(), result, on_wire(0, word), addend);
    return post(first());
  }

  /// Sends the notice of a signal as `send_notice` does.
  [[nodiscard]] errc notify(const raised_signal& raised) noexcept {
    if (is_bulk())
      return defer(at_once, [&](pending_call& call) noexcept {
        call.what = pending_call::kind::notice;
        call.raised = raised;
      });
    if (link_->failure().is_set()) return net_->why_broken(*link_);
    return send_notice(net_->own(), *link_, *out_, raised, *this);
  }

  /// Notes a request after earlier writes that lack a proof of visibility, on each queue pair with
  /// such writes. Its completion proves that the peer can see them. The request is an atomic, or a
  /// read if the device has no atomics. A write's own completion only says that the peer's device
  /// has it.
  [[nodiscard]] errc flush_writes() noexcept {
    const std::size_t place = scratch() + net_->own().map().unread();
    for (std::size_t q = 0; out_->unacked >> q != 0; ++q) {
      if ((out_->unacked >> q & 1U) == 0) continue;
      send_queue& queue = out_->queues[q];
      if (const errc code = make_room(queue); code != errc::ok) return code;
      const local_bytes unread = net_->own().registered(q, place, sizeof(std::uint64_t));
      const wire_place word = on_wire(q, out_->quiet_word);
      if (net_->own().has_atomics())
        append_add(queue, unread, word, 1);
      else
        queue.chain().append(IBV_WR_RDMA_READ, unread, word);
    }
    out_->unacked = 0;
    return errc::ok;
  }

  /// Posts an empty write to the peer on each device, no more than once per `probe_interval`. The
  /// peer's device acknowledges the write, or the link breaks. Skips devices with other requests in
  /// flight, which serve the same purpose.
  void probe() noexcept {
    if (!out_->next_probe.expired()) return;
    out_->next_probe = deadline::after(options().probe_interval);
    for (std::size_t q = 0; q < rails().size(); ++q) {  // The first queue pair of each.
      send_queue& queue = out_->queues[q];
      if (link_->failure().is_set() || !queue.is_idle()) continue;
      queue.chain().append(IBV_WR_RDMA_WRITE, {}, {});
      static_cast<void>(post(queue));
    }
  }

  /// Posts the requests that are noted on queue pair `number`.
  [[nodiscard]] errc post(std::size_t number) noexcept { return post(out_->queues[number]); }

  /// Makes room for one more request in the queue's chain.
  [[nodiscard]] errc make_room(send_queue& queue) noexcept {
    if (queue.has_room()) return errc::ok;
    if (const errc code = post(queue); code != errc::ok) return code;
    return net_->poll_until(*link_, [&]() noexcept { return queue.has_room(); });
  }

  /// Posts the queue's chain.
  [[nodiscard]] errc post(send_queue& queue) noexcept {
    int failed = net_->post(*link_, queue);
    if (failed == EAGAIN) {
      const errc code = net_->poll_until(*link_, [&]() noexcept {
        failed = net_->post(*link_, queue);
        return failed != EAGAIN;
      });
      if (code != errc::ok) return code;
    }
    return failed == 0 ? errc::ok : net_->why_broken(*link_);
  }

 private:
  link_sender(network& net, link& peer_link, registered::guarded<outgoing>::access out) noexcept
      : net_{&net}, link_{&peer_link}, out_{std::move(out)} {}

  /// Returns whether calls are sent later, in slices.
  [[nodiscard]] bool is_bulk() const noexcept { return net_->own().is_bulk(); }
  template <class Set>
  [[nodiscard]] errc defer(std::size_t bytes, Set&& set) noexcept {
    return rdma::defer(*net_, *link_, *out_, bytes, set);
  }

  [[nodiscard]] const verbs_options& options() const noexcept { return net_->own().options(); }
  [[nodiscard]] send_queue& first() const noexcept { return out_->queues[0]; }
  [[nodiscard]] std::size_t scratch() const noexcept {
    return net_->own().map().scratch(link_->peer());
  }

  [[nodiscard]] std::span<const std::unique_ptr<rail>> rails() const noexcept {
    return net_->own().rails();
  }
  /// Returns `place` with the key for requests on queue pair `number`.
  [[nodiscard]] wire_place on_wire(std::size_t number, const remote_place& place) const noexcept {
    return {place.address, place.key[net_->own().rail_of(number)]};
  }

  /// Notes a write in pieces, each on the least busy device.
  [[nodiscard]] errc write_in_pieces(std::span<const std::byte> source, const rail_keys* key,
                                     const remote_place& target) noexcept {
    const bool is_long = source.size() >= options().stripe_bytes;
    const std::size_t most = chain_bytes(net_->own());
    for (std::size_t begin = 0; begin < source.size(); begin += most) {
      const std::size_t number = choose_queue(net_->own(), *link_, *out_, is_long);
      const auto piece = source.subspan(begin, std::min(most, source.size() - begin));
      if (const errc code = write_on(number, piece, key, {target.address + begin, target.key});
          code != errc::ok)
        return code;
    }
    return errc::ok;
  }

  [[nodiscard]] errc write_on(std::size_t number, std::span<const std::byte> source,
                              const rail_keys* key, const remote_place& target) noexcept {
    send_queue& queue = out_->queues[number];
    out_->note_write(number);
    const errc code = in_messages(number, source, key, target,
                                  [&](const local_bytes& part, const wire_place& place) {
                                    if (queue.chain().extend_write(part, place)) return errc::ok;
                                    return append(queue, IBV_WR_RDMA_WRITE, part, place);
                                  });
    if (code != errc::ok || queue.chain().bytes() < chain_bytes(net_->own())) return code;
    return post(queue);
  }

  /// Calls `note(local, remote)` for each part that fits into a message on queue pair `number`.
  template <class Byte, class Note>
  [[nodiscard]] errc in_messages(std::size_t number, std::span<Byte> local, const rail_keys* keys,
                                 const remote_place& remote, Note&& note) noexcept {
    const std::size_t most = net_->own().most_message_bytes();
    const std::uint32_t key = (*keys)[net_->own().rail_of(number)];
    const wire_place place = on_wire(number, remote);
    for (std::size_t begin = 0; begin < local.size(); begin += most) {
      const auto length = static_cast<std::uint32_t>(std::min(most, local.size() - begin));
      const local_bytes part{reinterpret_cast<std::uintptr_t>(local.data()) + begin, length, key};
      if (const errc code = note(part, wire_place{place.address + begin, place.key});
          code != errc::ok)
        return code;
    }
    return errc::ok;
  }

  [[nodiscard]] errc append(send_queue& queue, ibv_wr_opcode opcode, const local_bytes& local,
                            const wire_place& remote) noexcept {
    if (link_->failure().is_set()) return net_->why_broken(*link_);
    if (const errc code = make_room(queue); code != errc::ok) return code;
    queue.chain().append(opcode, local, remote);
    return errc::ok;
  }

  static void append_add(send_queue& queue, const local_bytes& result, const wire_place& word,
                         std::uint64_t addend) noexcept {
    ibv_send_wr& request = queue.chain().append(IBV_WR_ATOMIC_FETCH_AND_ADD, result, {});
    request.wr.atomic.remote_addr = word.address;
    request.wr.atomic.rkey = word.key;
    request.wr.atomic.compare_add = addend;
  }

  network* net_;
  link* link_;
  registered::guarded<outgoing>::access out_;
};

}  // namespace peerbus::detail::rdma
