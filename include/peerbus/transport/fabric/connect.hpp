// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/standard_streams.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/fabric/descriptors.hpp>
#include <peerbus/transport/fabric/fabric_error.hpp>
#include <peerbus/transport/fabric/libfabric.hpp>
#include <peerbus/transport/fabric/link.hpp>
#include <peerbus/transport/fabric/network.hpp>
#include <peerbus/transport/fabric/notice.hpp>
#include <peerbus/transport/fabric/options.hpp>
#include <peerbus/transport/fabric/provider.hpp>
#include <peerbus/transport/registered/check_options.hpp>
#include <peerbus/transport/traffic_class.hpp>

namespace peerbus::detail::ofi {

/// Throws: `error` invalid_argument if an option is outside its range.
inline void check_options(const fabric_options& options) {
  if (options.provider.empty())
    throw error{errc::invalid_argument, "fabric: provider is empty, expected a name, such as tcp"};
  registered::check_options("fabric", options);
}

/// Tells the provider where the peers are.
/// Throws: `error` system.
inline void insert_addresses(network& net, const std::vector<bootstrap::contribution>& addresses) {
  for (const rank_id peer : all_ranks{net.size()}) {
    fi_addr_t found = FI_ADDR_NOTAVAIL;
    const auto& address = addresses[peer.index()].bytes;
    if (fi_av_insert(&net.own().addresses(), address.data(), 1, &found, 0, nullptr) != 1)
      throw error{errc::system, concat("fabric: provider ", net.own().describe(),
                                       " does not take the address of ", peer)};
    net.to(peer).set_address(found);
  }
}

/// Returns whether `rank` asks `peer` when they connect, and not `peer` asks `rank`. Each rank asks
/// half of the others: a rank that asks sees the calls of others at once, while the provider tcp of
/// libfabric 1.17 looks for calls only once in 10 ms at a rank that makes no connection itself.
inline bool asks(rank_id rank, rank_id peer, std::size_t size) noexcept {
  const std::size_t turns = peer < rank ? size : 0;
  const std::size_t distance = peer.index() + turns - rank.index();
  return distance != 0 && (2 * distance < size || (2 * distance == size && rank < peer));
}

/// Has each pair of ranks exchange a question and its answer, so that providers which connect when
/// they first send have done so. One rank of a pair asks: providers need not resolve calls that
/// cross.
/// Throws: `error` timed_out, system if no descriptor is left for a connection, or as the peer's
/// end.
inline void greet(network& net, const std::vector<bootstrap::contribution>& addresses,
                  deadline until) {
  constexpr std::chrono::milliseconds pause{20};
  auto next_check = deadline::after(pause);
  std::vector<rank_id> unheard;
  unheard.reserve(net.size());
  for (const rank_id peer : all_ranks{net.size()})
    if (asks(net.rank(), peer, net.size())) unheard.push_back(peer);
  for (;;) {
    for (const rank_id peer : unheard) {
      link& peer_link = net.to(peer);
      const auto out = peer_link.out().lock();
      if (out->asked == 0) out->unacked = true;
      if (const long failed = peer_link.request_ack(*out); failed != 0 && failed != -FI_EAGAIN)
        throw fabric_failure(concat("connecting to ", peer, " at ",
                                    net.own().describe(addresses[peer.index()].bytes)),
                             failed);
    }
    net.poll_all_arrivals();
    std::erase_if(unheard, [&](rank_id peer) { return net.to(peer).has_acked(1); });
    if (unheard.empty()) return;
    const rank_id waiting_for = unheard.back();
    if (const errc found = net.health(std::nullopt); found != errc::ok)
      throw error{found, concat("fabric: connecting to ", waiting_for, ": ",
                                net.members().describe_missing(), net.describe_trouble())};
    if (next_check.expired()) {
      require_descriptors(concat("connecting to ", waiting_for), 1);
      next_check = deadline::after(pause);
    }
    if (until.expired())
      throw error{errc::timed_out,
                  concat("fabric: no answer from ", waiting_for, " at ",
                         net.own().describe(addresses[waiting_for.index()].bytes), " by ",
                         net.own().describe(),
                         "; does a firewall, or another network, lie between? The option "
                         "domain chooses the interface")};
    net.sleep_until_arrival();
  }
}

/// Connects every rank with every other, for latency traffic, or for bulk traffic if `latency` is
/// the network for the former. Collective.
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
    // A socket for each peer, and both ends of one for what a rank puts to itself.
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
      {"signals by order", net && net->own().relies_on_order() ? "yes" : "no"}};
  agree(boot, "fabric", values, until, opened);

  bootstrap::contribution own;
  const auto named = objection_of(what, [&] { own.bytes = net->own().address(); });
  const auto addresses = gather_or_refuse(boot, "fabric", std::move(own), named, until);
  const auto greeted = objection_of(what, [&] {
    insert_addresses(*net, addresses);
    net->note_addresses();
    greet(*net, addresses, until);
    if (latency != nullptr) latency->watch_bulk(*net);
  });
  // A rank that could not reach a peer is named to all. More time, as others wait until then.
  agree(boot, "fabric connected", {}, deadline::after(options.setup_timeout), greeted);
  net->note_connected();
  return net;
}

}  // namespace peerbus::detail::ofi
