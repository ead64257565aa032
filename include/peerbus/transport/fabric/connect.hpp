// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/standard_streams.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/fabric/connections.hpp>
#include <peerbus/transport/fabric/descriptors.hpp>
#include <peerbus/transport/fabric/fabric_error.hpp>
#include <peerbus/transport/fabric/libfabric.hpp>
#include <peerbus/transport/fabric/link.hpp>
#include <peerbus/transport/fabric/link_failure.hpp>
#include <peerbus/transport/fabric/network.hpp>
#include <peerbus/transport/fabric/notice.hpp>
#include <peerbus/transport/fabric/options.hpp>
#include <peerbus/transport/fabric/provider.hpp>
#include <peerbus/transport/registered/check_options.hpp>
#include <peerbus/transport/traffic_class.hpp>

namespace peerbus::detail::ofi {

/// Checks the options.
/// Throws: `error` invalid_argument if an option is outside its range.
inline void check_options(const fabric_options& options) {
  if (options.provider.empty())
    throw error{errc::invalid_argument, "fabric: provider is empty, expected a name, such as tcp"};
  registered::check_options("fabric", options);
}

using addresses = std::vector<bootstrap::contribution>;  ///< addresses by rank

/// Tells a provider of datagrams the addresses of the peers.
/// Throws: `error` system.
inline void insert_addresses(network& net, const addresses& of_peers) {
  for (const rank_id peer : all_ranks{net.size()}) {
    fi_addr_t found = FI_ADDR_NOTAVAIL;
    const auto& address = of_peers[peer.index()].bytes;
    if (fi_av_insert(&net.own().addresses(), address.data(), 1, &found, 0, nullptr) != 1)
      throw error{errc::system, concat("fabric: provider ", net.own().describe(),
                                       " does not take the address of ", peer)};
    net.to(peer).set_endpoint(net.own().receiver(), found);
  }
}

/// Returns the address of a peer as text.
inline std::string describe(network& net, const bootstrap::contribution& address) {
  return net.connected() != nullptr ? connections::describe(address.bytes)
                                    : net.own().describe(address.bytes);
}

/// Returns whether `rank` asks `peer` when they connect; otherwise `peer` asks `rank`. Each rank
/// asks half of the others. A rank that asks sees the calls of others at once, while the provider
/// tcp;ofi_rxm of libfabric 1.17 looks for calls only once in 10 ms at a rank that makes no
/// connection itself.
inline bool asks(rank_id rank, rank_id peer, std::size_t size) noexcept {
  const std::size_t turns = peer < rank ? size : 0;
  const std::size_t distance = peer.index() + turns - rank.index();
  return distance != 0 && (2 * distance < size || (2 * distance == size && rank < peer));
}

/// Waits until `is_reached(peer)` for each of `awaited`, and calls `step(peer)` meanwhile.
/// Throws: `error` timed_out; system if no descriptor is left for a connection, or a link breaks;
/// peer_dead if a rank ends; or as `step`.
template <class IsReached, class Step>
void await_peers(network& net, std::vector<rank_id> awaited, const addresses& of_peers,
                 deadline until, IsReached&& is_reached, Step&& step) {
  constexpr std::chrono::milliseconds pause{20};
  auto next_check = deadline::after(pause);
  for (;;) {
    net.poll_all_arrivals();
    std::erase_if(awaited, is_reached);
    if (awaited.empty()) return;
    for (const rank_id peer : awaited) step(peer);
    const rank_id waiting_for = awaited.back();
    if (const errc found = net.health(std::nullopt); found != errc::ok)
      throw error{found == errc::unreachable ? errc::system : found,
                  concat("fabric: connecting to ", waiting_for, ": ",
                         net.members().describe_missing(), net.describe_trouble())};
    if (next_check.expired()) {
      require_descriptors(concat("connecting to ", waiting_for), 1);
      next_check = deadline::after(pause);
    }
    if (until.expired())
      throw error{errc::timed_out,
                  concat("fabric: no answer from ", waiting_for, " at ",
                         describe(net, of_peers[waiting_for.index()]), " by ", net.own().describe(),
                         "; does a firewall, or another network, lie between? The option "
                         "domain chooses the interface")};
    net.sleep_while_connecting();
  }
}

/// Lets each pair of ranks exchange a question and its answer, so that providers of datagrams that
/// connect at the first message have connected. `asked` are the peers that this rank asks. Only one
/// rank of a pair asks, because providers need not resolve calls that cross.
/// Throws: as `insert_addresses` and `await_peers`; `error` system.
inline void greet(network& net, std::vector<rank_id> asked, const addresses& of_peers,
                  deadline until) {
  insert_addresses(net, of_peers);
  net.note_endpoints();
  await_peers(
      net, std::move(asked), of_peers, until,
      [&](rank_id peer) { return net.to(peer).has_acked(1); },
      [&](rank_id peer) {
        link& peer_link = net.to(peer);
        const auto out = peer_link.out().lock();
        if (out->asked == 0) out->unacked = true;
        if (const long failed = peer_link.request_ack(*out); failed != 0 && failed != -FI_EAGAIN)
          throw fabric_failure(
              concat("connecting to ", peer, " at ", describe(net, of_peers[peer.index()])),
              failed);
      });
}

/// Waits until the connections to `peers` are open.
/// Throws: `error` system or peer_dead if a connection fails; or as `await_peers`.
inline void await_connections(network& net, std::vector<rank_id> peers, const addresses& of_peers,
                              deadline until) {
  await_peers(
      net, std::move(peers), of_peers, until,
      [&](rank_id peer) { return net.connected()->is_open(peer); },
      [&](rank_id peer) {
        const link& peer_link = net.to(peer);
        if (!peer_link.failure().is_set()) return;
        const bool is_dead = net.why_broken(peer_link) == errc::peer_dead;
        throw error{is_dead ? errc::peer_dead : errc::system,
                    concat("fabric: connecting to ", peer, " at ",
                           describe(net, of_peers[peer.index()]), ": ",
                           is_dead ? net.members().describe_missing()
                                   : peer_link.failure().describe(net.own().queue()))};
      });
}

/// Accepts the calls of `callers`, until all are connected or a connection breaks, for up to 50 ms.
/// A rank that waits for the group would accept calls less often.
inline void expect_calls(network& net, const std::vector<rank_id>& callers) {
  const auto until = deadline::after(std::chrono::milliseconds{50});
  const auto is_open = [&](rank_id peer) { return net.connected()->is_open(peer); };
  while (!std::ranges::all_of(callers, is_open) && !net.any_broken() && !until.expired()) {
    net.sleep_while_connecting();
    net.poll_all_arrivals();
  }
}

/// Connects every rank with every other rank. If `latency` is null, the connections are for latency
/// traffic. Otherwise they are for bulk traffic, and `latency` is the network for latency traffic.
/// Collective.
/// Returns: the network of this rank.
/// Throws, on all ranks: `error` unsupported, invalid_argument, mismatch, out_of_memory, system,
/// timed_out; or as `bootstrap::allgather`.
inline std::unique_ptr<network> connect(bootstrap& boot, const fabric_options& options,
                                        wait_thresholds waiting, network* latency = nullptr) {
  const auto traffic = latency == nullptr ? traffic_class::latency : traffic_class::bulk;
  const auto until = deadline::after(options.setup_timeout);
  constexpr std::string_view what = "fabric's queues and addresses";
  std::unique_ptr<network> net;
  const auto opened = objection_of(what, [&] {
    check_options(options);
    occupy_standard_streams();
    const bool on_one_host = boot.near_ranks().size() == boot.size();
    net = std::make_unique<network>(
        boot, provider_search{options, on_one_host, traffic, boot.rendezvous_address()}.find(),
        options, waiting, latency);
    // A socket for each peer, and another of datagrams for this rank itself.
    if (net->own().opens_sockets())
      require_descriptors(concat("connecting ", boot.size(), " ranks"), boot.size() + 1);
  });
  const fi_info* const info = net ? &net->own().info() : nullptr;
  const std::vector<declared> values{
      {"protocol version", notice::protocol_version},
      {"byte order", std::endian::native == std::endian::little ? "little-endian" : "big-endian"},
      {"provider", info != nullptr ? std::string_view{info->fabric_attr->prov_name} : ""},
      {"address format", info != nullptr ? info->addr_format : 0},
      {"traffic class", name_of(traffic)},
      {"kind of endpoint", net && net->own().connects() ? "connections" : "datagrams"}};
  agree(boot, "fabric", values, until, opened);

  bootstrap::contribution own;
  const auto named = objection_of(what, [&] {
    own.bytes = net->connected() != nullptr ? net->connected()->address() : net->own().address();
  });
  const addresses of_peers = gather_or_refuse(boot, "fabric", std::move(own), named, until);
  // One rank of a pair calls. The other takes the call also while it waits for the group.
  connections* const connected = net->connected();
  std::vector<rank_id> called;
  std::vector<rank_id> callers;
  for (const rank_id peer : all_ranks{net->size()})
    if (peer != net->rank())
      (asks(net->rank(), peer, net->size()) ? called : callers).push_back(peer);
  const auto greeted = objection_of(what, [&] {
    if (connected == nullptr) {
      greet(*net, std::move(called), of_peers, until);
    } else {
      for (const rank_id peer : called) connected->call(peer, of_peers[peer.index()].bytes);
      await_connections(*net, std::move(called), of_peers, until);
      expect_calls(*net, callers);
    }
    if (latency != nullptr) latency->watch_bulk(*net);
  });
  // A rank that could not reach a peer is named to all. More time, as others wait until then.
  const auto later = deadline::after(options.setup_timeout);
  agree(boot, "fabric connected", {}, later, greeted);
  if (connected != nullptr) {
    await_connections(*net, std::move(callers), of_peers, later);
    net->exclude_arrivals([&]() noexcept { connected->stop_listening(); });
    net->note_endpoints();
  }
  net->note_connected();
  return net;
}

}  // namespace peerbus::detail::ofi
