// SPDX-License-Identifier: MIT
// libpeerbus_verbs.so: RDMA verbs, alone or for far ranks.
#include <peerbus/transport/verbs.hpp>

#include "network_module.hpp"

namespace {

peerbus::verbs_options options_of(const peerbus::c_library::network_place& place) {
  peerbus::verbs_options options;
  options.device = place.device;
  return options;
}

using functions =
    peerbus::c_library::network_module<peerbus::verbs, options_of, &peerbus::verbs::describe_port>;

}  // namespace

PEERBUS_MODULE(.make = functions::make, .make_planes = functions::make_planes)
