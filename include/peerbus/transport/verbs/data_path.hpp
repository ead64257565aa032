// SPDX-License-Identifier: MIT
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/registered/data_path.hpp>
#include <peerbus/transport/registered/request_count.hpp>
#include <peerbus/transport/traffic_class.hpp>
#include <peerbus/transport/verbs/failures.hpp>
#include <peerbus/transport/verbs/link.hpp>
#include <peerbus/transport/verbs/link_sender.hpp>
#include <peerbus/transport/verbs/network.hpp>
#include <peerbus/transport/verbs/registration.hpp>

namespace peerbus::detail::rdma {

/// The data path of `verbs`. Puts are noted in a chain of requests per queue pair. The next
/// `signal`, `flush`, `quiet` or `progress` to that peer posts the chain under one doorbell, or it
/// is posted once it is long enough. Puts to bulk windows are sent in slices. A signal is a
/// completion at the peer, of an RDMA WRITE with immediate data or of a SEND. By the InfiniBand
/// specification, this completion makes puts visible (docs/proofs.md). `verbs` adds the making of
/// windows. Semantics: the numbered list at `transport`.
class data_path : public registered::data_path<network, link_sender> {
 public:
  [[nodiscard]] transport_capabilities capabilities() const noexcept {
    // All ranks' devices have atomics, or none: `connect` compares them.
    return {.any_local_memory = false,
            .fetch_add = net()->own().has_atomics(),
            .traffic_classes = true};
  }

  [[nodiscard]] errc fetch_add(rank_id peer, const window& memory, std::size_t offset,
                               std::uint64_t addend, std::uint64_t& before) noexcept {
    const auto part = own(memory);
    if (!part.holds(peer, offset, sizeof addend)) return errc::out_of_range;
    if (offset % sizeof addend != 0) return errc::invalid_argument;
    if (!net()->own().has_atomics()) return errc::unsupported;
    // To this rank itself as well: a device's atomics are atomic among themselves only.
    network& net = memory.network();
    link& peer_link = net.to(peer);
    std::optional<std::size_t> entry;
    const auto taken = [&]() noexcept { return (entry = peer_link.results().take()).has_value(); };
    if (const errc code = net.poll_until(peer_link, taken); code != errc::ok) return code;
    const std::size_t result = net.own().map().scratch(peer) + net.own().map().result(*entry);
    const errc code = add_and_wait(net, peer_link, net.own().registered(0, result, sizeof before),
                                   part.place(peer, offset), addend);
    if (code != errc::ok) return code;  // The device may still write there: the entry is lost.
    std::memcpy(&before, net.own().memory(result), sizeof before);
    peer_link.results().give_back(*entry);
    return errc::ok;
  }

  [[nodiscard]] errc flush(rank_id peer) noexcept {
    if (peer.index() >= net()->size()) return errc::out_of_range;
    return net()->for_classes([peer](network& net) noexcept { return flush(net, peer); });
  }
  [[nodiscard]] errc quiet() noexcept {
    return net()->for_classes([](network& net) noexcept { return quiet(net); });
  }
  [[nodiscard]] errc progress() noexcept {
    for (const rank_id peer : all_ranks{net()->size()}) {
      link& peer_link = net()->to(peer);
      auto sender = link_sender::take_free(
          *net(), peer_link);  // A thread that has its turn posts what it notes.
      for (std::size_t q = 0; sender && q < peer_link.pairs().size(); ++q)
        if (const errc code = sender->post(q); code != errc::ok) return code;
    }
    net()->poll();
    return errc::ok;
  }

  /// Returns a text such as "no connection to rank 3 any more: transport retry counter exceeded:
  /// …", and the peers that have not acknowledged requests, of both classes. Empty if there are
  /// none.
  [[nodiscard]] std::string describe_trouble() const {
    const std::string text = net()->describe_classes();
    return text.empty() ? text : text + describe_inactive_ports(net()->own());
  }
  /// Returns a text such as "rxe0 port 1 GID 1", for all devices, separated by ", ".
  [[nodiscard]] std::string describe_port() const {
    std::string text;
    for (const auto& each : net()->own().rails())
      text += concat(text.empty() ? "" : ", ", each->port().describe());
    return text;
  }
  /// Returns the number of bytes that this rank has sent by each of `verbs_options::devices`, in
  /// their order. Empty if the rank has one device.
  [[nodiscard]] std::vector<std::uint64_t> bytes_by_device() const {
    std::vector<std::uint64_t> bytes;
    const auto rails = net()->own().rails();
    const network* const bulk = net()->bulk();
    for (std::size_t i = 0; rails.size() > 1 && i < rails.size(); ++i) {
      bytes.push_back(rails[i]->load().sent());
      if (bulk != nullptr) bytes.back() += bulk->own().rails()[i]->load().sent();
    }
    return bytes;
  }
  /// Returns queue pair `number` to `peer`, for tools and tests. Null if there is no connection for
  /// that class.
  [[nodiscard]] ibv_qp* queue_pair(rank_id peer, std::size_t number = 0,
                                   traffic_class traffic = traffic_class::latency) const noexcept {
    const network* const chosen = traffic == traffic_class::latency ? net().get() : net()->bulk();
    return chosen == nullptr ? nullptr : chosen->to(peer).pairs()[number].get();
  }

 protected:
  using registered::data_path<network, link_sender>::data_path;

 private:
  [[nodiscard]] static errc flush(network& net, rank_id peer) noexcept {
    link& peer_link = net.to(peer);
    if (const errc code = send_pending(net, peer_link); code != errc::ok) return code;
    for (std::size_t q = 0; q < peer_link.pairs().size(); ++q) {
      if (const errc code = link_sender{net, peer_link}.post(q); code != errc::ok) return code;
      const registered::request_count& count = peer_link.counts()[q];
      if (const errc code = complete(net, peer_link, count, count.posted()); code != errc::ok)
        return code;
    }
    return errc::ok;
  }
  [[nodiscard]] static errc quiet(network& net) noexcept {
    for (const rank_id peer : all_ranks{net.size()}) {
      if (const errc code = send_pending(net, net.to(peer)); code != errc::ok) return code;
      if (const errc code = link_sender{net, net.to(peer)}.flush_writes(); code != errc::ok)
        return code;
    }
    for (const rank_id peer : all_ranks{net.size()})
      if (const errc code = flush(net, peer); code != errc::ok) return code;
    return errc::ok;
  }
  /// Waits until the bulk calls that are pending now have been posted.
  [[nodiscard]] static errc send_pending(network& net, link& peer_link) noexcept {
    const std::uint32_t added = peer_link.pending().added();
    return net.poll_until(peer_link,
                          [&]() noexcept { return peer_link.pending().sent_up_to(added); });
  }

  [[nodiscard]] static errc add_and_wait(network& net, link& peer_link, const local_bytes& result,
                                         const remote_place& word, std::uint64_t addend) noexcept {
    std::uint32_t posted = 0;
    {
      link_sender sender{net, peer_link};
      if (const errc code = sender.add(result, word, addend); code != errc::ok) return code;
      posted = peer_link.counts()[0].posted();
    }
    return complete(net, peer_link, peer_link.counts()[0], posted);
  }
  [[nodiscard]] static errc complete(network& net, link& peer_link,
                                     const registered::request_count& count,
                                     std::uint32_t posted) noexcept {
    return net.poll_until(peer_link, [&]() noexcept { return count.completed_up_to(posted); });
  }
};

}  // namespace peerbus::detail::rdma
