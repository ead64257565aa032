// SPDX-License-Identifier: MIT
// libpeerbus_fabric.so: libfabric, alone or for far ranks.
#include <peerbus/transport/fabric.hpp>

#include "network_module.hpp"

namespace {

peerbus::fabric_options options_of(const peerbus::c_library::network_place& place) {
  peerbus::fabric_options options;
  if (!place.provider.empty()) options.provider = place.provider;
  options.domain = place.device;
  return options;
}

void prepare(const peerbus::c_library::network_place& place) {
  peerbus::fabric::prepare(options_of(place));
}

using functions = peerbus::c_library::network_module<peerbus::fabric, options_of,
                                                     &peerbus::fabric::describe_provider>;

}  // namespace

PEERBUS_MODULE(.make = functions::make, .make_planes = functions::make_planes, .prepare = prepare)
