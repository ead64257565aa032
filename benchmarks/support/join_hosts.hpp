// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/transport/planes.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/network_options.hpp"

namespace bench {

template <class Far>
using hosts_over = peerbus::planes<peerbus::unified_bus, Far>;

/// Connects the ranks of each host, or of each pretended one, by memory, and hosts by what
/// `make_far(bootstrap&)` returns.
template <class Far, class MakeFar>
hosts_over<Far> join_hosts(peerbus::bootstrap& boot, const network_options& chosen,
                           MakeFar make_far) {
  peerbus::planes_options with;
  if (chosen.groups != 0)
    with.group = "host " + std::to_string(boot.rank().index() * chosen.groups / boot.size());
  return {boot, with, [](peerbus::bootstrap& group) { return peerbus::unified_bus{group}; },
          std::move(make_far)};
}

}  // namespace bench
