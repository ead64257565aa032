// SPDX-License-Identifier: MIT
// libpeerbus_fabric.so: libfabric, alone or for far ranks.
#include <algorithm>
#include <chrono>
#include <utility>

#include <peerbus/transport/fabric.hpp>
#include <peerbus/transport/planes.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "../module.hpp"

namespace {

using peerbus::any_transport;
using peerbus::bootstrap;
using peerbus::fabric;
using peerbus::unified_bus;
using peerbus::c_library::network_place;

std::chrono::milliseconds time_left(const network_place& place) {
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(place.until.remaining()),
                  std::chrono::milliseconds{1});
}

fabric make_network(bootstrap& boot, const network_place& place) {
  peerbus::fabric_options options;
  if (!place.provider.empty()) options.provider = place.provider;
  options.domain = place.device;
  options.setup_timeout = time_left(place);
  options.stall_timeout = place.stall_timeout;
  return fabric{boot, options};
}

any_transport make(bootstrap& boot, const network_place& place) {
  return any_transport{make_network(boot, place)};
}

any_transport make_planes(bootstrap& boot, const network_place& place) {
  return any_transport{peerbus::planes<unified_bus, fabric>{
      boot,
      {.setup_timeout = time_left(place)},
      [](bootstrap& group) { return unified_bus{group}; },
      [&](bootstrap& all) { return make_network(all, place); }}};
}

}  // namespace

PEERBUS_MODULE(.make = make, .make_planes = make_planes)
