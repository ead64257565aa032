// SPDX-License-Identifier: MIT
#include "deep_ep/relay.hpp"

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/config.hpp>

#include "deep_ep/low_latency.hpp"
#include "deep_ep/normal.hpp"
#include "support/network_options.hpp"
#include "support/networks.hpp"

namespace deep_ep_bench {

#if PEERBUS_BENCH_FABRIC
namespace {

using hosts = bench::hosts_over<peerbus::fabric>;
using peerbus::moe::relay;

template <class Codec>
using low_latency_with_relay =
    two_sides<low_latency_memory<Codec>, low_latency_names<hosts, Codec, relay::never>,
              low_latency_names<hosts, Codec, relay::always>>;
using normal_with_relay =
    two_sides<normal_memory, normal_names<hosts, relay::never>, normal_names<hosts, relay::always>>;

}  // namespace

outcome measure_relay(peerbus::bootstrap& boot, const options& chosen) {
  bench::network_options network;
  network.groups = chosen.hosts;
  peerbus::communicator<hosts> comm{bench::join_hosts<peerbus::fabric>(boot, network)};
  // The sum of each host is rounded to bf16 before it is added up at home.
  const int roundings = static_cast<int>(chosen.hosts);
  if (chosen.mode == "normal")
    return measure<normal_with_relay>(comm, chosen, relay_names, roundings);
  if (chosen.payload.codec == "bf16")
    return measure<low_latency_with_relay<peerbus::codec::bf16>>(comm, chosen, relay_names,
                                                                 roundings);
  return measure<low_latency_with_relay<peerbus::codec::fp8_e4m3_per_128_f32>>(
      comm, chosen, relay_names, roundings);
}
#else
outcome measure_relay(peerbus::bootstrap& /*boot*/, const options& /*chosen*/) {
  throw peerbus::error{peerbus::errc::unsupported,
                       "--relay: this deep_ep_bench was built without fabric"};
}
#endif

}  // namespace deep_ep_bench
