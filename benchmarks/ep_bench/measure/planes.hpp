// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/planes.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "ep_bench/rank_impl.hpp"

namespace ep_bench {

template <class Far>
using hosts_over = peerbus::planes<peerbus::unified_bus, Far>;

/// One layout, in one codec: rows travel by either plane as they do in the others.
template <class Far>
outcome measure_layout(peerbus::communicator<hosts_over<Far>>& comm, const options& chosen,
                       lane_crew& crew, std::size_t cores) {
  return measure<hosts_over<Far>, peerbus::moe::compact>(comm, chosen, crew, cores);
}

/// Connects the ranks of each host, or of each pretended one, by memory, and hosts by what
/// `make_far(bootstrap&)` returns.
template <class Far, class MakeFar>
hosts_over<Far> join_hosts(peerbus::bootstrap& boot, const options& chosen, MakeFar make_far) {
  peerbus::planes_options with;
  if (chosen.groups != 0)
    with.group = "host " + std::to_string(boot.rank().index() * chosen.groups / boot.size());
  return {boot, with, [](peerbus::bootstrap& group) { return peerbus::unified_bus{group}; },
          std::move(make_far)};
}

}  // namespace ep_bench
