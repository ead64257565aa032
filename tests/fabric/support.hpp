// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/fabric.hpp>
#include <peerbus/transport/fabric/provider.hpp>

#include "support/ranks.hpp"

namespace fabric_test {

/// A short queue, so that short tests fill it, and no trust in the order of messages, as over a
/// provider that promises none.
class confirming_fabric : public peerbus::basic_fabric<> {
 public:
  explicit confirming_fabric(peerbus::bootstrap& boot)
      : basic_fabric{boot, {.queue_depth = 5, .rely_on_order = false}} {}
};
static_assert(peerbus::runnable_transport<confirming_fabric>);

/// libfabric looks for all its providers when it is first called. Here, where ranks are forked, it
/// does so once.
inline const bool have_providers = [] {
  static_cast<void>(peerbus::detail::ofi::provider_search{{}, true}.find());
  return true;
}();

using plain = test::any_over<peerbus::any_transport, test::processes_over<peerbus::fabric>>;
using confirming = test::any_over<peerbus::any_transport, test::processes_over<confirming_fabric>>;
using both = test::any_over<peerbus::any_transport, test::processes_over<peerbus::fabric>,
                            test::processes_over<confirming_fabric>>;

}  // namespace fabric_test
