// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/any_transport.hpp>
#if PEERBUS_BENCH_FABRIC
#include <peerbus/transport/fabric.hpp>
#endif
#if PEERBUS_BENCH_VERBS
#include <peerbus/transport/verbs.hpp>
#endif

#include "support/join_hosts.hpp"
#include "support/network_options.hpp"

/// The transports over a network that a benchmark was built with, as its command line chooses them.
namespace bench {

/// Returns what the transport `Network` is made with.
template <class Network>
[[nodiscard]] auto options_of(const network_options& chosen);

#if PEERBUS_BENCH_FABRIC
template <>
[[nodiscard]] inline auto options_of<peerbus::fabric>(const network_options& chosen) {
  peerbus::fabric_options with;
  if (!chosen.provider.empty()) with.provider = chosen.provider;
  with.domain = chosen.device;
  return with;
}
#endif

#if PEERBUS_BENCH_VERBS
template <>
[[nodiscard]] inline auto options_of<peerbus::verbs>(const network_options& chosen) {
  peerbus::verbs_options with;
  for (std::size_t begin = 0; begin < chosen.device.size();) {  // "rxe0,rxe1" names two.
    const std::size_t end = std::min(chosen.device.find(',', begin), chosen.device.size());
    with.devices.push_back(chosen.device.substr(begin, end - begin));
    begin = end + 1;
  }
  if (with.devices.size() == 1) {
    with.device = with.devices.front();
    with.devices.clear();
  }
  if (chosen.gid_index) with.gid_index = static_cast<int>(*chosen.gid_index);
  with.queue_pairs_per_peer =
      static_cast<decltype(with.queue_pairs_per_peer)>(chosen.queue_pairs.value_or(1));
  return with;
}
#endif

/// Connects the ranks of each host, or of each pretended one, by memory, and hosts by `Far`.
template <class Far>
[[nodiscard]] hosts_over<Far> join_hosts(peerbus::bootstrap& boot, const network_options& chosen) {
  return join_hosts<Far>(
      boot, chosen, [&](peerbus::bootstrap& all) { return Far{all, options_of<Far>(chosen)}; });
}

/// Calls `visit` with the transport that was chosen: "verbs", "fabric", or "planes" of one of them
/// and `unified_bus`. A network is held as `any_transport`, because it takes the time, and each
/// further transport takes long to compile. Returns: what `visit` returns.
/// Throws: `peerbus::error` unsupported if `program` was built without that network.
template <class Visit>
int over_network(peerbus::bootstrap& boot, const network_options& chosen,
                 const std::string& transport, const char* program, Visit visit) {
  const bool planes = transport == "planes";
  const std::string network = planes ? chosen.between_hosts() : transport;
  [[maybe_unused]] const auto over = [&]<class Network>() {
    if (planes) return visit(join_hosts<Network>(boot, chosen));
    return visit(peerbus::any_transport{Network{boot, options_of<Network>(chosen)}});
  };
#if PEERBUS_BENCH_FABRIC
  if (network == "fabric") return over.template operator()<peerbus::fabric>();
#endif
#if PEERBUS_BENCH_VERBS
  if (network == "verbs") return over.template operator()<peerbus::verbs>();
#endif
  throw peerbus::error{peerbus::errc::unsupported,
                       peerbus::concat(network, ": this ", program, " was built without it")};
}

}  // namespace bench
