// SPDX-License-Identifier: MIT
#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/verbs/connection.hpp>
#include <peerbus/transport/verbs/endpoint.hpp>
#include <peerbus/transport/verbs/notice.hpp>
#include <peerbus/transport/verbs/window_part.hpp>

namespace peerbus::detail::rdma {

/// The data path of `verbs`. Puts are noted in a chain of requests per queue pair, which is posted
/// under one doorbell by the next `signal`, `flush`, `quiet` or `progress` to that peer, or once it
/// is long enough. A signal is a completion at the peer, of an RDMA WRITE with immediate data or of
/// a SEND, which is what the InfiniBand specification makes puts visible by; see
/// docs/memory_model.md.
class data_path {
 public:
  explicit data_path(endpoint& network) noexcept : net_{&network} {}

  /// Returns whether devices do `fetch_add`. All ranks' do, or none: `connector` compares them.
  [[nodiscard]] bool has_atomics() const noexcept {
    return net_->port().limits.atomic_cap != IBV_ATOMIC_NONE;
  }

  [[nodiscard]] errc put(rank_id peer, const window_part& at, std::size_t offset,
                         std::span<const std::byte> source) noexcept {
    if (!holds(at, peer, offset, source.size())) return errc::out_of_range;
    if (source.empty()) return errc::ok;
    if (peer == net_->rank()) return copy(at, offset, source);
    const std::lock_guard turn{net_->to(peer).sending};
    return write(peer, at, offset, source);
  }

  [[nodiscard]] errc signal(rank_id peer, const window_part& at, signal_id id,
                            std::uint64_t value) noexcept {
    if (!has(at, peer, id)) return errc::out_of_range;
    if (peer == net_->rank()) return raise_own(at, id, value);
    connection& to = net_->to(peer);
    const std::lock_guard turn{to.sending};
    return notify(to, {at.number, id, value});
  }

  [[nodiscard]] errc put_signal(rank_id peer, const window_part& at, std::size_t offset,
                                std::span<const std::byte> source, signal_id id,
                                std::uint64_t value) noexcept {
    if (!has(at, peer, id) || !holds(at, peer, offset, source.size())) return errc::out_of_range;
    if (peer == net_->rank()) {
      const errc code = source.empty() ? errc::ok : copy(at, offset, source);
      return code == errc::ok ? raise_own(at, id, value) : code;
    }
    connection& to = net_->to(peer);
    const std::lock_guard turn{to.sending};
    if (!source.empty())
      if (const errc code = write(peer, at, offset, source); code != errc::ok) return code;
    return notify(to, {at.number, id, value});  // Takes the put's own request along.
  }

  [[nodiscard]] errc get(rank_id peer, const window_part& at, std::size_t offset,
                         std::span<std::byte> target) noexcept {
    if (!holds(at, peer, offset, target.size())) return errc::out_of_range;
    if (target.empty()) return errc::ok;
    const auto key = key_of(at, target);
    if (!key) return errc::invalid_argument;
    if (peer == net_->rank()) {
      std::memmove(target.data(), at.data.data() + offset, target.size());
      return errc::ok;
    }
    connection& to = net_->to(peer);
    const std::lock_guard turn{to.sending};
    return in_parts(peer, at, offset, target, *key,
                    [&](const local_bytes& part, remote_place from) {
                      return request(to, to.queues[0], IBV_WR_RDMA_READ, part, from);
                    });
  }

  [[nodiscard]] errc fetch_add(rank_id peer, const window_part& at, std::size_t offset,
                               std::uint64_t addend, std::uint64_t& before) noexcept {
    if (!holds(at, peer, offset, sizeof addend)) return errc::out_of_range;
    if (offset % sizeof addend != 0) return errc::invalid_argument;
    if (!has_atomics()) return errc::unsupported;
    // To this rank itself as well: a device's atomics are atomic among themselves only.
    connection& to = net_->to(peer);
    std::optional<std::size_t> entry;
    if (const errc code = net_->stall(to, [&]() noexcept { return !!(entry = to.results.take()); });
        code != errc::ok)
      return code;
    const std::byte* const result = to.scratch + net_->map().result(*entry);
    const remote_place& base = at.parts[peer.index()];
    const errc code = add_and_wait(to, to.registered(result, sizeof before),
                                   {base.address + offset, base.key}, addend);
    if (code != errc::ok) return code;  // The device may still write there: the entry is lost.
    std::memcpy(&before, result, sizeof before);
    to.results.give_back(*entry);
    return errc::ok;
  }

  [[nodiscard]] errc wait(const window_part& at, signal_id id, std::uint64_t value, deadline until,
                          std::optional<rank_id> awaited) noexcept {
    if (!has(at, net_->rank(), id)) return errc::out_of_range;
    signal_word& word = at.signal(id);
    const wait_thresholds& thresholds = net_->waiting();
    for (std::uint32_t i = 0; i <= thresholds.tight + thresholds.paused; ++i) {
      if (word.value() >= value) return errc::ok;
      net_->look_at_arrivals();
      if (i > thresholds.tight) pause_core();
    }
    return wait_slowly(word, value, until, awaited);
  }

  [[nodiscard]] std::uint64_t value(const window_part& at, signal_id id) const noexcept {
    if (!has(at, net_->rank(), id)) return 0;
    net_->look_at_arrivals();
    return at.signal(id).value();
  }

  [[nodiscard]] errc flush(rank_id peer) noexcept {
    if (peer.index() >= net_->size()) return errc::out_of_range;
    connection& to = net_->to(peer);
    for (std::uint32_t q = 0; q < net_->options().queue_pairs_per_peer; ++q) {
      std::uint32_t posted = 0;
      {
        const std::lock_guard turn{to.sending};
        if (const errc code = net_->post(to, to.queues[q]); code != errc::ok) return code;
        posted = to.queues[q].posted();
      }
      if (const errc code = complete(to, to.queues[q], posted); code != errc::ok) return code;
    }
    return errc::ok;
  }

  /// A request's completion here says that the peer's device has it, not that the peer can see it;
  /// that of an atomic behind it does.
  [[nodiscard]] errc quiet() noexcept {
    for (const rank_id peer : all_ranks{net_->size()}) {
      connection& to = net_->to(peer);
      const std::lock_guard turn{to.sending};
      for (std::uint32_t q = 0; to.unproven != 0 && q < net_->options().queue_pairs_per_peer; ++q) {
        if ((to.unproven >> q & 1U) == 0) continue;
        if (const errc code = net_->make_room(to, to.queues[q]); code != errc::ok) return code;
        const local_bytes unread =
            to.registered(to.scratch + net_->map().unread(), sizeof(std::uint64_t));
        if (has_atomics())
          add(to.queues[q], unread, to.quiet_word, 1);
        else
          to.queues[q].chain().append(IBV_WR_RDMA_READ, unread, to.quiet_word);
      }
      to.unproven = 0;
    }
    for (const rank_id peer : all_ranks{net_->size()})
      if (const errc code = flush(peer); code != errc::ok) return code;
    return errc::ok;
  }

  [[nodiscard]] errc progress() noexcept {
    for (const rank_id peer : all_ranks{net_->size()}) {
      connection& to = net_->to(peer);
      const std::unique_lock turn{to.sending, std::try_to_lock};  // Who has it gets on with it.
      for (std::uint32_t q = 0; turn && q < net_->options().queue_pairs_per_peer; ++q)
        if (const errc code = net_->post(to, to.queues[q]); code != errc::ok) return code;
    }
    net_->look();
    return errc::ok;
  }

 private:
  static constexpr std::chrono::milliseconds longest_sleep{2};
  /// Bytes in a chain that are worth a doorbell of their own.
  static constexpr std::size_t long_chain_bytes = std::size_t{64} << 10U;

  [[nodiscard]] bool holds(const window_part& at, rank_id peer, std::size_t offset,
                           std::size_t length) const noexcept {
    const std::size_t all = at.shape.bytes;
    return peer.index() < net_->size() && offset <= all && length <= all - offset;
  }
  [[nodiscard]] bool has(const window_part& at, rank_id peer, signal_id id) const noexcept {
    return peer.index() < net_->size() && index(id) < at.shape.signals;
  }
  /// Of memory in `at`, where it usually is, or in another window.
  [[nodiscard]] std::optional<std::uint32_t> key_of(
      const window_part& at, std::span<const std::byte> memory) const noexcept {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    if (begin >= at.address() && begin - at.address() < at.shape.bytes &&
        memory.size() <= at.shape.bytes - (begin - at.address()))
      return at.registration->lkey;
    return net_->windows().key_of(memory);
  }

  /// A put to oneself.
  [[nodiscard]] errc copy(const window_part& at, std::size_t offset,
                          std::span<const std::byte> source) const noexcept {
    if (!key_of(at, source)) return errc::invalid_argument;
    std::memmove(at.data.data() + offset, source.data(), source.size());
    return errc::ok;
  }

  /// A put to another rank, to whom the caller has the turn.
  [[nodiscard]] errc write(rank_id peer, const window_part& at, std::size_t offset,
                           std::span<const std::byte> source) noexcept {
    const auto key = key_of(at, source);
    if (!key) return errc::invalid_argument;
    connection& to = net_->to(peer);
    const std::uint32_t queues = net_->options().queue_pairs_per_peer;
    if (queues == 1 || source.size() < net_->options().stripe_bytes)
      return write_on(to, 0, peer, at, offset, source, *key);
    // Whole pages to each, so that devices copy them well.
    constexpr std::size_t page = 4096;
    const std::size_t round = page * queues;
    const std::size_t stripe = (source.size() + round - 1) / round * page;
    for (std::uint32_t q = 0; q < queues && q * stripe < source.size(); ++q) {
      const auto part = source.subspan(q * stripe, std::min(stripe, source.size() - q * stripe));
      if (const errc code = write_on(to, q, peer, at, offset + q * stripe, part, *key);
          code != errc::ok)
        return code;
    }
    return errc::ok;
  }

  [[nodiscard]] errc write_on(connection& to, std::uint32_t number, rank_id peer,
                              const window_part& at, std::size_t offset,
                              std::span<const std::byte> source, std::uint32_t key) noexcept {
    send_queue& queue = to.queues[number];
    to.unproven |= 1U << number;
    if (number != 0) to.unsignalled |= static_cast<queue_set>(1U << (number - 1));
    const errc code =
        in_parts(peer, at, offset, source, key, [&](const local_bytes& part, remote_place place) {
          if (queue.chain().extend_write(part, place)) return errc::ok;
          return request(to, queue, IBV_WR_RDMA_WRITE, part, place);
        });
    if (code != errc::ok || queue.chain().bytes() < long_chain_bytes) return code;
    return net_->post(to, queue);
  }

  /// Calls `one(local, remote)` for parts that a message can hold.
  template <class Byte, class One>
  [[nodiscard]] errc in_parts(rank_id peer, const window_part& at, std::size_t offset,
                              std::span<Byte> local, std::uint32_t key, One&& one) noexcept {
    const remote_place& base = at.parts[peer.index()];
    const std::size_t most = net_->port().attributes.max_msg_sz;
    for (std::size_t done = 0; done < local.size(); done += most) {
      const auto length = static_cast<std::uint32_t>(std::min(most, local.size() - done));
      const local_bytes part{reinterpret_cast<std::uintptr_t>(local.data()) + done, length, key};
      if (const errc code = one(part, remote_place{base.address + offset + done, base.key});
          code != errc::ok)
        return code;
    }
    return errc::ok;
  }

  [[nodiscard]] errc request(connection& to, send_queue& queue, ibv_wr_opcode opcode,
                             const local_bytes& local, const remote_place& remote) noexcept {
    if (to.is_broken()) return net_->why_broken(to);
    if (const errc code = net_->make_room(to, queue); code != errc::ok) return code;
    queue.chain().append(opcode, local, remote);
    return errc::ok;
  }

  static void add(send_queue& queue, const local_bytes& result, const remote_place& word,
                  std::uint64_t addend) noexcept {
    ibv_send_wr& made = queue.chain().append(IBV_WR_ATOMIC_FETCH_AND_ADD, result, {});
    made.wr.atomic.remote_addr = word.address;
    made.wr.atomic.rkey = word.key;
    made.wr.atomic.compare_add = addend;
  }

  [[nodiscard]] errc raise_own(const window_part& at, signal_id id, std::uint64_t value) noexcept {
    // Arrivals may raise it too. A thread that sleeps on the channel finds out when it next wakes.
    const std::lock_guard turn{net_->looking()};
    signal_word& word = at.signal(id);
    if (word.value() < value) word.raise(value);
    return errc::ok;
  }

  /// Sends the notice of a signal behind everything that was put.
  [[nodiscard]] errc notify(connection& to, const raised_signal& what) noexcept {
    if (to.is_broken()) return net_->why_broken(to);
    // First, as the peer must hear of every fence, and of whatever the table of names learns.
    if (const errc code = net_->make_room(to, to.queues[0]); code != errc::ok) return code;
    for (std::uint32_t q = 1; to.unsignalled >> (q - 1) != 0; ++q) {
      if ((to.unsignalled >> (q - 1) & 1U) == 0) continue;
      if (const errc code = with_immediate(to, to.queues[q], 0); code != errc::ok) return code;
    }
    const queue_set after = std::exchange(to.unsignalled, queue_set{0});
    const std::uint8_t name = signal_names::name_of(what);
    if (const auto growth = to.names.update(what))
      return with_immediate(to, to.queues[0], short_notice{name, after, *growth}.encode());
    const notice said{what, name, after};
    std::byte* const place = to.scratch + control_map::notice(to.queues[0].next_place());
    std::memcpy(place, &said, sizeof said);
    to.queues[0].chain().append(IBV_WR_SEND, to.registered(place, sizeof said), {});
    return net_->post(to, to.queues[0]);
  }

  /// As part of the last write, if that is still here.
  [[nodiscard]] errc with_immediate(connection& to, send_queue& queue,
                                    std::uint32_t bits) noexcept {
    ibv_send_wr* carrier = queue.chain().last_plain_write();
    if (carrier == nullptr) {
      if (const errc code = net_->make_room(to, queue); code != errc::ok) return code;
      carrier = &queue.chain().append(IBV_WR_RDMA_WRITE, {}, {});
    }
    carrier->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    carrier->imm_data = htonl(bits);
    return net_->post(to, queue);
  }

  [[nodiscard]] errc add_and_wait(connection& to, const local_bytes& result,
                                  const remote_place& word, std::uint64_t addend) noexcept {
    std::uint32_t posted = 0;
    {
      const std::lock_guard turn{to.sending};
      if (const errc code = net_->make_room(to, to.queues[0]); code != errc::ok) return code;
      add(to.queues[0], result, word, addend);
      if (const errc code = net_->post(to, to.queues[0]); code != errc::ok) return code;
      posted = to.queues[0].posted();
    }
    return complete(to, to.queues[0], posted);
  }

  [[nodiscard]] errc complete(connection& to, const send_queue& queue,
                              std::uint32_t posted) noexcept {
    return net_->stall(to, [&]() noexcept { return queue.completed_up_to(posted); });
  }

  /// Writes nothing to the peer, once every `probe_interval` however often it is called: its device
  /// acknowledges that, or the connection breaks. Not if other requests are on their way, which
  /// tell as much.
  void probe(connection& to) noexcept {
    const std::unique_lock turn{to.sending, std::try_to_lock};
    if (!turn || !to.next_probe.expired()) return;
    to.next_probe = deadline::after(net_->options().probe_interval);
    send_queue& queue = to.queues[0];
    if (to.is_broken() || !queue.chain().empty() || !queue.completed_up_to(queue.posted())) return;
    queue.chain().append(IBV_WR_RDMA_WRITE, {}, {});
    static_cast<void>(net_->post(to, queue));
  }

  [[nodiscard]] errc wait_slowly(signal_word& word, std::uint64_t value, deadline until,
                                 std::optional<rank_id> awaited) noexcept {
    const wait_thresholds& thresholds = net_->waiting();
    const auto pause = thresholds.check_interval;
    auto next_check = deadline::after(pause);
    for (std::uint32_t i = 0;; ++i) {
      net_->look();
      if (word.value() >= value) return errc::ok;
      const bool is_last_look = until.expired();
      if (is_last_look || next_check.expired()) {
        if (const errc found = net_->health(awaited); found != errc::ok) {
          // What the peer raised before it was gone still counts.
          net_->look_at_all_arrivals();
          return word.value() >= value ? errc::ok : found;
        }
        if (awaited && *awaited != net_->rank() && awaited->index() < net_->size())
          probe(net_->to(*awaited));
        if (is_last_look) return errc::timed_out;
        next_check = deadline::after(pause);
      }
      if (i < thresholds.yields) {
        ::sched_yield();
        continue;
      }
      // Soon, whatever the policy: a thread that has the channel may leave, and looks no more then.
      deadline wake = deadline::after(std::min<std::chrono::nanoseconds>(pause, longest_sleep));
      if (until.when() < wake.when()) wake = until;
      if (!net_->park(word, value, wake))
        static_cast<void>(
            word.wait_at_least(value, wake, thresholds, []() noexcept { return errc::ok; }));
    }
  }

  endpoint* net_;
};

}  // namespace peerbus::detail::rdma
