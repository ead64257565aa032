// SPDX-License-Identifier: MIT
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/verbs/link.hpp>
#include <peerbus/transport/verbs/network.hpp>
#include <peerbus/transport/verbs/request_count.hpp>
#include <peerbus/transport/verbs/signal_wait.hpp>
#include <peerbus/transport/verbs/turn.hpp>
#include <peerbus/transport/verbs/window.hpp>
#include <peerbus/transport/verbs/window_part.hpp>

namespace peerbus::detail::rdma {

/// The data path of `verbs`. Puts are noted in a chain of requests per queue pair, which is posted
/// under one doorbell by the next `signal`, `flush`, `quiet` or `progress` to that peer, or once it
/// is long enough. A signal is a completion at the peer, of an RDMA WRITE with immediate data or of
/// a SEND, which is what the InfiniBand specification makes puts visible by; see
/// docs/memory_model.md. Semantics: the numbered list at `transport`.
class data_path {
 public:
  using window = rdma::window;

  static constexpr transport_refinements refines{.put_run = true, .describe_trouble = true};

  [[nodiscard]] bootstrap& boot() const noexcept { return *boot_; }
  [[nodiscard]] transport_capabilities capabilities() const noexcept {
    // All ranks' devices have atomics, or none: `connect` compares them.
    return {.any_local_memory = false, .fetch_add = net_->own().has_atomics()};
  }
  [[nodiscard]] std::span<std::byte> local(const window& memory) const noexcept {
    return {memory.part().data.data(), memory.part().shape.bytes};
  }

  [[nodiscard]] errc put(rank_id peer, const window& memory, std::size_t offset,
                         std::span<const std::byte> source) noexcept {
    const put_piece piece{offset, source};
    return put_run(peer, memory, {&piece, 1});
  }

  [[nodiscard]] errc put_run(rank_id peer, const window& memory,
                             std::span<const put_piece> pieces) noexcept {
    const window_part& part = memory.part();
    for (const put_piece& piece : pieces)
      if (!holds(part, peer, piece.offset, piece.source.size())) return errc::out_of_range;
    if (peer == net_->rank()) return copy(part, pieces);
    turn mine{*net_, net_->to(peer)};
    return write(mine, peer, part, pieces);
  }

  [[nodiscard]] errc signal(rank_id peer, const window& memory, signal_id id,
                            std::uint64_t value) noexcept {
    return put_signal(peer, memory, 0, {}, id, value);
  }

  [[nodiscard]] errc put_signal(rank_id peer, const window& memory, std::size_t offset,
                                std::span<const std::byte> source, signal_id id,
                                std::uint64_t value) noexcept {
    const window_part& part = memory.part();
    const put_piece piece{offset, source};
    if (!has(part, peer, id) || !holds(part, peer, offset, source.size()))
      return errc::out_of_range;
    if (peer == net_->rank()) {
      const errc code = copy(part, {&piece, 1});
      return code == errc::ok ? raise_own(part, id, value) : code;
    }
    turn mine{*net_, net_->to(peer)};
    if (const errc code = write(mine, peer, part, {&piece, 1}); code != errc::ok) return code;
    return mine.notify({part.number, id, value});  // Takes the put's own request along.
  }

  [[nodiscard]] errc get(rank_id peer, const window& memory, std::size_t offset,
                         std::span<std::byte> target) noexcept {
    const window_part& part = memory.part();
    if (!holds(part, peer, offset, target.size())) return errc::out_of_range;
    if (target.empty()) return errc::ok;
    const auto key = key_of(part, target);
    if (!key) return errc::invalid_argument;
    if (peer == net_->rank()) {
      std::memmove(target.data(), part.data.data() + offset, target.size());
      return errc::ok;
    }
    return turn{*net_, net_->to(peer)}.read(target, *key, part.place(peer, offset));
  }

  [[nodiscard]] errc fetch_add(rank_id peer, const window& memory, std::size_t offset,
                               std::uint64_t addend, std::uint64_t& before) noexcept {
    const window_part& part = memory.part();
    if (!holds(part, peer, offset, sizeof addend)) return errc::out_of_range;
    if (offset % sizeof addend != 0) return errc::invalid_argument;
    if (!net_->own().has_atomics()) return errc::unsupported;
    // To this rank itself as well: a device's atomics are atomic among themselves only.
    link& to = net_->to(peer);
    std::optional<std::size_t> entry;
    const auto taken = [&]() noexcept { return (entry = to.results().take()).has_value(); };
    if (const errc code = net_->stall(to, taken); code != errc::ok) return code;
    const std::size_t result = net_->own().map().scratch(peer) + net_->own().map().result(*entry);
    const errc code = add_and_wait(to, net_->own().registered(result, sizeof before),
                                   part.place(peer, offset), addend);
    if (code != errc::ok) return code;  // The device may still write there: the entry is lost.
    std::memcpy(&before, net_->own().memory(result), sizeof before);
    to.results().give_back(*entry);
    return errc::ok;
  }

  [[nodiscard]] errc wait(const window& memory, signal_id id, std::uint64_t value, deadline until,
                          std::optional<rank_id> awaited) noexcept {
    if (!has(memory.part(), awaited.value_or(net_->rank()), id)) return errc::out_of_range;
    return wait_for(*net_, memory.part().signal(id), value, until, awaited);
  }
  [[nodiscard]] std::uint64_t value(const window& memory, signal_id id) const noexcept {
    if (!has(memory.part(), net_->rank(), id)) return 0;
    net_->arriving().look_at_arrivals();
    return memory.part().signal(id).value();
  }

  [[nodiscard]] errc flush(rank_id peer) noexcept {
    if (peer.index() >= net_->size()) return errc::out_of_range;
    link& to = net_->to(peer);
    for (std::size_t q = 0; q < to.pairs().size(); ++q) {
      if (const errc code = turn{*net_, to}.post(q); code != errc::ok) return code;
      const request_count& count = to.counts()[q];
      if (const errc code = complete(to, count, count.posted()); code != errc::ok) return code;
    }
    return errc::ok;
  }
  [[nodiscard]] errc quiet() noexcept {
    for (const rank_id peer : all_ranks{net_->size()})
      if (const errc code = turn{*net_, net_->to(peer)}.prove_writes(); code != errc::ok)
        return code;
    for (const rank_id peer : all_ranks{net_->size()})
      if (const errc code = flush(peer); code != errc::ok) return code;
    return errc::ok;
  }
  [[nodiscard]] errc progress() noexcept {
    for (const rank_id peer : all_ranks{net_->size()}) {
      link& to = net_->to(peer);
      auto mine = turn::take_free(*net_, to);  // A thread that has its turn posts what it notes.
      for (std::size_t q = 0; mine && q < to.pairs().size(); ++q)
        if (const errc code = mine->post(q); code != errc::ok) return code;
    }
    net_->arriving().look();
    return errc::ok;
  }

  [[nodiscard]] std::string describe_trouble() const { return net_->describe_trouble(); }
  /// "rxe0 port 1 GID 1".
  [[nodiscard]] std::string describe_port() const { return net_->own().port().describe(); }
  /// Memory kept for each peer besides windows, except what the device's driver keeps.
  [[nodiscard]] std::size_t bytes_per_peer() const noexcept { return net_->bytes_per_peer(); }
  /// The queue pair itself, for tools and tests.
  [[nodiscard]] ibv_qp* queue_pair(rank_id peer, std::size_t number = 0) const noexcept {
    return net_->to(peer).pairs()[number].get();
  }

 protected:
  data_path(bootstrap& boot, std::shared_ptr<network> net) noexcept
      : boot_{&boot}, net_{std::move(net)} {}

  [[nodiscard]] const std::shared_ptr<network>& net() const noexcept { return net_; }

 private:
  [[nodiscard]] bool holds(const window_part& part, rank_id peer, std::size_t offset,
                           std::size_t length) const noexcept {
    const std::size_t bytes = part.shape.bytes;
    return peer.index() < net_->size() && offset <= bytes && length <= bytes - offset;
  }
  [[nodiscard]] bool has(const window_part& part, rank_id peer, signal_id id) const noexcept {
    return peer.index() < net_->size() && index(id) < part.shape.signals;
  }
  /// Returns the local key of memory in `part`, where it usually is, or in another window.
  [[nodiscard]] std::optional<std::uint32_t> key_of(
      const window_part& part, std::span<const std::byte> memory) const noexcept {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    if (begin >= part.address() && begin - part.address() < part.shape.bytes &&
        memory.size() <= part.shape.bytes - (begin - part.address()))
      return part.registration->lkey;
    return std::as_const(*net_).windows().key_of(memory);
  }

  /// Puts to this rank itself.
  [[nodiscard]] errc copy(const window_part& part,
                          std::span<const put_piece> pieces) const noexcept {
    for (const auto& [offset, source] : pieces) {
      if (source.empty()) continue;
      if (!key_of(part, source)) return errc::invalid_argument;
      std::memmove(part.data.data() + offset, source.data(), source.size());
    }
    return errc::ok;
  }

  /// Puts to another rank.
  [[nodiscard]] errc write(turn& mine, rank_id peer, const window_part& part,
                           std::span<const put_piece> pieces) noexcept {
    for (const auto& [offset, source] : pieces) {
      if (source.empty()) continue;
      const auto key = key_of(part, source);
      if (!key) return errc::invalid_argument;
      if (const errc code = mine.write(source, *key, part.place(peer, offset)); code != errc::ok)
        return code;
    }
    return errc::ok;
  }

  [[nodiscard]] errc raise_own(const window_part& part, signal_id id,
                               std::uint64_t value) noexcept {
    // Arrivals may raise it too. A thread that sleeps on the channel finds out when it next wakes.
    net_->arriving().exclude_arrivals([&]() noexcept {
      signal_word& word = part.signal(id);
      if (word.value() < value) word.raise(value);
    });
    return errc::ok;
  }

  [[nodiscard]] errc add_and_wait(link& to, const local_bytes& result, const remote_place& word,
                                  std::uint64_t addend) noexcept {
    std::uint32_t posted = 0;
    {
      turn mine{*net_, to};
      if (const errc code = mine.add(result, word, addend); code != errc::ok) return code;
      posted = to.counts()[0].posted();
    }
    return complete(to, to.counts()[0], posted);
  }
  [[nodiscard]] errc complete(link& to, const request_count& count, std::uint32_t posted) noexcept {
    return net_->stall(to, [&]() noexcept { return count.completed_up_to(posted); });
  }

  bootstrap* boot_;
  std::shared_ptr<network> net_;
};

}  // namespace peerbus::detail::rdma
