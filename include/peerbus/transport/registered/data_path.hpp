// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/registered/own_part.hpp>
#include <peerbus/transport/registered/signal_wait.hpp>
#include <peerbus/transport/registered/window.hpp>

namespace peerbus::detail::registered {

/// The part of a data path that is common to networks of requests. It checks arguments, serves this
/// rank itself, and passes other calls to a turn at the link to the peer. Semantics: the numbered
/// list at `transport`.
///
/// `Sender` is made of a `Network` and one of its links. It has `write_run(part, pieces)`,
/// `put_signal(part, piece, id, value)` and `read(target, key, place)`, where `part` is an
/// `own_part`. Its static `probe(net, peer)` lets the network ask whether `peer` can still be
/// reached.
template <class Network, class Sender>
class data_path {
 public:
  using network_type = Network;
  using window = registered::window<Network>;

  static constexpr transport_refinements refines{.put_run = true,
                                                 .describe_trouble = true,
                                                 .adopt_window = true,
                                                 .local_signals = true,
                                                 .arrival_events = true};

  [[nodiscard]] bootstrap& boot() const noexcept { return *boot_; }
  [[nodiscard]] std::span<std::byte> local(const window& memory) const noexcept {
    return memory.part().memory.data;
  }
  [[nodiscard]] std::span<signal_word> local_signals(const window& memory) const noexcept {
    return memory.part().memory.signals;
  }

  [[nodiscard]] errc put(rank_id peer, const window& memory, std::size_t offset,
                         std::span<const std::byte> source) noexcept {
    const put_piece piece{offset, source};
    return put_run(peer, memory, {&piece, 1});
  }

  [[nodiscard]] errc put_run(rank_id peer, const window& memory,
                             std::span<const put_piece> pieces) noexcept {
    const auto part = own(memory);
    if (const errc code = part.check_pieces(peer, pieces); code != errc::ok) return code;
    Network& net = memory.network();
    if (peer == net.rank()) {
      part.copy(pieces);
      return errc::ok;
    }
    return Sender{net, net.to(peer)}.write_run(part, pieces);
  }

  [[nodiscard]] errc signal(rank_id peer, const window& memory, signal_id id,
                            std::uint64_t value) noexcept {
    return put_signal(peer, memory, 0, {}, id, value);
  }

  [[nodiscard]] errc put_signal(rank_id peer, const window& memory, std::size_t offset,
                                std::span<const std::byte> source, signal_id id,
                                std::uint64_t value) noexcept {
    const auto part = own(memory);
    const put_piece piece{offset, source};
    if (!part.has(peer, id)) return errc::out_of_range;
    if (const errc code = part.check_pieces(peer, {&piece, 1}); code != errc::ok) return code;
    Network& net = memory.network();
    if (peer == net.rank()) {
      part.copy({&piece, 1});
      return part.raise(id, value);
    }
    return Sender{net, net.to(peer)}.put_signal(part, piece, id, value);
  }

  [[nodiscard]] errc get(rank_id peer, const window& memory, std::size_t offset,
                         std::span<std::byte> target) noexcept {
    const auto part = own(memory);
    if (!part.holds(peer, offset, target.size())) return errc::out_of_range;
    if (target.empty()) return errc::ok;
    const auto key = part.key_of(target);
    if (!key) return errc::invalid_argument;
    Network& net = memory.network();
    if (peer == net.rank()) {
      std::memmove(target.data(), local(memory).data() + offset, target.size());
      return errc::ok;
    }
    return Sender{net, net.to(peer)}.read(target, *key, part.place(peer, offset));
  }

  [[nodiscard]] std::uint64_t value(const window& memory, signal_id id) const noexcept {
    if (!own(memory).has(net_->rank(), id)) return 0;
    memory.network().poll_arrivals();
    return memory.part().signal(id).value();
  }

  [[nodiscard]] errc wait(const window& memory, signal_id id, std::uint64_t value, deadline until,
                          std::optional<rank_id> awaited) noexcept {
    if (!own(memory).has(awaited.value_or(net_->rank()), id)) return errc::out_of_range;
    Network& net = memory.network();
    return wait_for(net, memory.part().signal(id), value, until, awaited,
                    [&net](rank_id peer) noexcept { Sender::probe(net, peer); });
  }
  [[nodiscard]] int arrival_fd() const noexcept { return net_->arrival_fd(); }
  [[nodiscard]] bool arm() noexcept { return net_->arm(); }
  void disarm() noexcept { net_->disarm(); }
  [[nodiscard]] errc health(std::optional<rank_id> awaited) noexcept {
    return net_->for_classes([awaited](Network& net) noexcept {
      return check_health(net, awaited,
                          [&net](rank_id peer) noexcept { Sender::probe(net, peer); });
    });
  }

  /// Returns the number of bytes kept for each peer, without windows and the memory of a driver or
  /// provider.
  [[nodiscard]] std::size_t bytes_per_peer() const noexcept {
    return net_->bytes_per_peer_of_classes();
  }

 protected:
  data_path(bootstrap& boot, std::shared_ptr<Network> net) noexcept
      : boot_{&boot}, net_{std::move(net)} {}

  [[nodiscard]] const std::shared_ptr<Network>& net() const noexcept { return net_; }
  [[nodiscard]] own_part<Network> own(const window& memory) const noexcept {
    return {memory.network(), memory.part()};
  }

 private:
  bootstrap* boot_;
  std::shared_ptr<Network> net_;
};

}  // namespace peerbus::detail::registered
