// SPDX-License-Identifier: MIT
// libpeerbus_tcp.so: ranks of several hosts meet over TCP.
#include <functional>
#include <memory>

#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/bootstrap/tcp_join_running.hpp>

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

std::shared_ptr<void> join(
    const peerbus::tcp_settings& settings,
    const std::function<std::shared_ptr<void>(std::unique_ptr<peerbus::bootstrap>)>& make,
    peerbus::deadline until) {
  return peerbus::join_running(settings, make, until);
}

}  // namespace

PEERBUS_MODULE(.meet = meet, .meet_by_environment = meet_by_environment, .join = join)
