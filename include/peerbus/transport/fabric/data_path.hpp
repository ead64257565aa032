// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/fabric/link.hpp>
#include <peerbus/transport/fabric/link_sender.hpp>
#include <peerbus/transport/fabric/network.hpp>
#include <peerbus/transport/registered/data_path.hpp>

namespace peerbus::detail::ofi {

/// The data path of `fabric`. A put is a write of the provider, a signal a message whose receive
/// completion makes earlier writes visible; see docs/proofs.md. `fabric` adds the making of
/// windows. Semantics: the numbered list at `transport`.
class data_path : public registered::data_path<network, link_sender> {
 public:
  [[nodiscard]] transport_capabilities capabilities() const noexcept {
    // Providers that have atomics give up the order of messages for them.
    return {.any_local_memory = false, .fetch_add = false, .traffic_classes = true};
  }

  [[nodiscard]] errc fetch_add(rank_id peer, const window& memory, std::size_t offset,
                               std::uint64_t addend, std::uint64_t& /*before*/) noexcept {
    if (!own(memory).holds(peer, offset, sizeof addend)) return errc::out_of_range;
    return offset % sizeof addend != 0 ? errc::invalid_argument : errc::unsupported;
  }

  [[nodiscard]] errc flush(rank_id peer) noexcept {
    if (peer.index() >= net()->size()) return errc::out_of_range;
    return net()->for_classes([peer](network& net) noexcept { return flush(net, peer); });
  }
  /// Waits until each peer that was put to has called the transport. Gives a link up after
  /// `stall_timeout`. Does not wait for peers that got only signals.
  [[nodiscard]] errc quiet() noexcept {
    return net()->for_classes([](network& net) noexcept { return quiet(net); });
  }
  [[nodiscard]] errc progress() noexcept {
    net()->poll_all_classes();
    return errc::ok;
  }

  /// Returns the trouble of both classes. Takes completions first, because completed requests are
  /// no trouble.
  [[nodiscard]] std::string describe_trouble() const {
    net()->poll_all_classes();
    return net()->describe_classes();
  }
  /// Returns a text such as "tcp, domain eth0, 10.0.0.1".
  [[nodiscard]] std::string describe_provider() const { return net()->own().describe(); }

 protected:
  using registered::data_path<network, link_sender>::data_path;

 private:
  [[nodiscard]] static errc flush(network& net, rank_id peer) noexcept {
    link& peer_link = net.to(peer);
    if (!peer_link.pending().is_empty()) {
      const std::uint32_t added = peer_link.pending().added();
      const auto is_sent = [&]() noexcept { return peer_link.pending().sent_up_to(added); };
      const errc code =
          net.poll_until(peer_link, [&]() noexcept { return is_sent() || peer_link.has_left(); });
      if (code != errc::ok) return code;
      if (!is_sent()) return net.why_broken(peer_link);
    }
    std::uint32_t posted = 0;
    {
      const auto out = peer_link.out().lock();
      posted = peer_link.requests().count().posted();
    }
    return net.poll_until(
        peer_link, [&]() noexcept { return peer_link.requests().count().completed_up_to(posted); });
  }

  [[nodiscard]] static errc quiet(network& net) noexcept {
    for (const rank_id peer : all_ranks{net.size()}) {
      std::uint64_t number = 0;
      if (const errc code = request_ack(net, peer, number); code != errc::ok) return code;
    }
    for (const rank_id peer : all_ranks{net.size()}) {
      if (const errc code = flush(net, peer); code != errc::ok) return code;
      std::uint64_t number = 0;
      if (const errc code = request_ack(net, peer, number); code != errc::ok) return code;
      link& peer_link = net.to(peer);
      const errc code = net.poll_until(peer_link, [&]() noexcept {
        return peer_link.has_acked(number) || peer_link.has_left();
      });
      if (code != errc::ok) return code;
    }
    return errc::ok;
  }

  /// Requests an acknowledgement as `link_sender::request_ack` does. Asks nothing of this rank and
  /// of peers that have closed their end.
  [[nodiscard]] static errc request_ack(network& net, rank_id peer,
                                        std::uint64_t& number) noexcept {
    link& peer_link = net.to(peer);
    if (peer == net.rank() || peer_link.has_left()) return errc::ok;
    return link_sender{net, peer_link}.request_ack(number);
  }
};

}  // namespace peerbus::detail::ofi
