// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
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
#include <peerbus/core/text.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/registered/check_options.hpp>
#include <peerbus/transport/traffic_class.hpp>
#include <peerbus/transport/verbs/handshake.hpp>
#include <peerbus/transport/verbs/network.hpp>
#include <peerbus/transport/verbs/notice.hpp>
#include <peerbus/transport/verbs/opened_device.hpp>
#include <peerbus/transport/verbs/options.hpp>
#include <peerbus/transport/verbs/rail_keys.hpp>

namespace peerbus::detail::rdma {

/// Checks the options.
/// Throws: `error` invalid_argument if an option is outside its range.
inline void check_options(const verbs_options& options) {
  const auto within = [](std::string_view name, std::int64_t given, std::int64_t least,
                         std::int64_t most) {
    if (given < least || given > most)
      throw error{errc::invalid_argument,
                  concat("verbs: ", name, " is ", given, ", expected ", least, " to ", most)};
  };
  if (!options.devices.empty()) {
    within("devices, their number", static_cast<std::int64_t>(options.devices.size()), 2,
           most_rails);
    if (!options.device.empty())
      throw error{errc::invalid_argument, concat("verbs: device is '", options.device,
                                                 "' and devices are given, expected one of both")};
    if (options.stripe_bytes == 0)
      throw error{errc::invalid_argument,
                  "verbs: stripe_bytes is 0, expected more, as several devices take pieces of it"};
  }
  const std::size_t devices = std::max<std::size_t>(options.devices.size(), 1);
  within("queue_pairs_per_peer", options.queue_pairs_per_peer, 1,
         static_cast<std::int64_t>(most_queue_pairs / devices));
  within("ack_timeout", options.ack_timeout, 0, 31);
  within("retries", options.retries, 0, 7);
  within("service_level", options.service_level, 0, 15);
  within("traffic_class", options.traffic_class, 0, 255);
  within("bulk_service_level", options.bulk_service_level, -1, 15);
  within("bulk_traffic_class", options.bulk_traffic_class, -1, 255);
  within("gid_index", options.gid_index, -1, 255);
  registered::check_options("verbs", options);
}

/// Connects every rank with every other rank. If `latency` is null, the connections are for latency
/// traffic. Otherwise they are for bulk traffic, on the same devices as `latency`, the network for
/// latency traffic. Collective.
/// Returns: the network of this rank.
/// Throws, on all ranks: `error` unsupported, invalid_argument, mismatch, out_of_memory, system; or
/// as `bootstrap::allgather`.
inline std::unique_ptr<network> connect(bootstrap& boot, const verbs_options& options,
                                        wait_thresholds waiting, network* latency = nullptr) {
  const auto traffic = latency == nullptr ? traffic_class::latency : traffic_class::bulk;
  const auto until = deadline::after(options.setup_timeout);
  constexpr std::string_view what = "the queues of verbs";
  std::unique_ptr<network> net;
  const auto opened = objection_of(what, [&] {
    check_options(options);
    net = std::make_unique<network>(
        boot, latency == nullptr ? open_devices(options) : latency->own().devices(), options,
        waiting, latency);
  });
  const std::vector<declared> values{
      {"protocol version", handshake::protocol_version},
      {"byte order", std::endian::native == std::endian::little ? "little-endian" : "big-endian"},
      {"queue pairs per peer", options.queue_pairs_per_peer},
      {"traffic class", name_of(traffic)},
      {"devices per rank", std::max<std::size_t>(options.devices.size(), 1)},
      {"atomics", net && net->own().has_atomics() ? "yes" : "no"},
      {"link layer",
       net && net->own().rails().front()->port().is_ethernet() ? "Ethernet" : "InfiniBand"}};
  agree(boot, "verbs", values, until, opened);

  const handshake shake{*net};
  const auto greetings = gather_or_refuse(boot, "verbs", shake.greet(), std::nullopt, until);
  const auto joined = objection_of(what, [&] {
    for (const rank_id peer : all_ranks{boot.size()})
      shake.join(peer, greetings[peer.index()].bytes);
  });
  // Nobody sends before all can receive. A rank that cannot is named to all.
  agree(boot, "verbs connected", {}, until, joined);
  return net;
}

}  // namespace peerbus::detail::rdma
