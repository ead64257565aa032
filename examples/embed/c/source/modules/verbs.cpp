// SPDX-License-Identifier: MIT
// libpeerbus_verbs.so: RDMA verbs, alone or for far ranks.
#include <algorithm>
#include <chrono>
#include <utility>

#include <peerbus/transport/planes.hpp>
#include <peerbus/transport/unified_bus.hpp>
#include <peerbus/transport/verbs.hpp>

#include "../module.hpp"

namespace {

using peerbus::any_transport;
using peerbus::bootstrap;
using peerbus::unified_bus;
using peerbus::verbs;
using peerbus::c_library::network_place;

std::chrono::milliseconds time_left(const network_place& place) {
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(place.until.remaining()),
                  std::chrono::milliseconds{1});
}

verbs make_network(bootstrap& boot, const network_place& place) {
  peerbus::verbs_options options;
  options.device = place.device;
  options.setup_timeout = time_left(place);
  options.stall_timeout = place.stall_timeout;
  return verbs{boot, options};
}

any_transport make(bootstrap& boot, const network_place& place) {
  return any_transport{make_network(boot, place)};
}

any_transport make_planes(bootstrap& boot, const network_place& place) {
  return any_transport{peerbus::planes<unified_bus, verbs>{
      boot,
      {.setup_timeout = time_left(place)},
      [](bootstrap& group) { return unified_bus{group}; },
      [&](bootstrap& all) { return make_network(all, place); }}};
}

}  // namespace

PEERBUS_MODULE(.make = make, .make_planes = make_planes)
