// SPDX-License-Identifier: MIT
// libpeerbus_tcp.so: ranks of several hosts meet over TCP.
#include <memory>

#include <peerbus/bootstrap/tcp.hpp>

#include "../module.hpp"

namespace {

std::unique_ptr<peerbus::bootstrap> meet(const peerbus::tcp_settings& settings,
                                         peerbus::deadline until) {
  return std::make_unique<peerbus::tcp_bootstrap>(settings, until);
}

std::unique_ptr<peerbus::bootstrap> meet_by_environment(peerbus::deadline until) {
  // The result of the call is made in place, because a bootstrap does not move.
  return std::unique_ptr<peerbus::bootstrap>{
      new peerbus::tcp_bootstrap(peerbus::tcp_bootstrap::from_environment(until))};
}

}  // namespace

PEERBUS_MODULE(.meet = meet, .meet_by_environment = meet_by_environment)
