// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/planes.hpp>

#include "support/indirect.hpp"
#include "support/mailed.hpp"

namespace test {

/// `planes` over pretended hosts: rank r is on host r modulo `Groups`.
template <class Near, class Far, std::size_t Groups>
class grouped : public peerbus::planes<Near, Far> {
 public:
  explicit grouped(peerbus::bootstrap& boot)
      : peerbus::planes<Near, Far>{
            boot, {.group = "host " + std::to_string(boot.rank().index() % Groups)}} {}
};

/// Far ranks reached in the laziest way that the contract allows.
template <std::size_t Groups>
using lazy_planes = grouped<peerbus::loopback, indirect<peerbus::loopback>, Groups>;
/// Far signals that arrive only where their receiver looks or sleeps.
template <std::size_t Groups>
using mailed_planes = grouped<peerbus::loopback, mailed, Groups>;

/// Three planes: ranks of one host, of two hosts in a rack, and of two racks.
class three_planes : public peerbus::planes<mailed_planes<2>, mailed> {
 public:
  explicit three_planes(peerbus::bootstrap& boot)
      : planes{boot, {.group = boot.rank().index() < boot.size() / 2 ? "rack 0" : "rack 1"}} {}
};
static_assert(peerbus::runnable_transport<three_planes>);

}  // namespace test
