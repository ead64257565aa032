// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/fabric.hpp>

#include "support/ranks.hpp"

namespace fabric_test {

/// A provider of connections, and one of datagrams, which makes connections of its own anew.
inline constexpr const char* connections = "tcp";
inline constexpr const char* datagrams = "tcp;ofi_rxm";

/// A short queue, so that short tests fill it.
template <bool Connects>
class short_fabric : public peerbus::basic_fabric<> {
 public:
  explicit short_fabric(peerbus::bootstrap& boot)
      : basic_fabric{boot, {.provider = Connects ? connections : datagrams, .queue_depth = 5}} {}
};
static_assert(peerbus::runnable_transport<short_fabric<true>>);

/// libfabric looks for all its providers when it is first called. Here, where ranks are forked, it
/// does so once.
inline const bool have_providers = [] {
  peerbus::fabric::prepare();
  return true;
}();

using plain = test::any_over<peerbus::any_transport, test::processes_over<peerbus::fabric>>;
using connected = test::any_over<peerbus::any_transport, test::processes_over<short_fabric<true>>>;
using both = test::any_over<peerbus::any_transport, test::processes_over<short_fabric<false>>,
                            test::processes_over<short_fabric<true>>>;

}  // namespace fabric_test
