// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/indirect.hpp"
#include "support/ranks.hpp"

/// Groups of ranks for tests of what stands on transports, one per path and kind of rank. They hold
/// their transport at run time, so that all of them share one instance of what is tested.
namespace test {

using direct_threads = any_over<peerbus::any_transport, threads_over<peerbus::loopback>>;
using staged_threads = any_over<peerbus::any_transport, threads_over<indirect<peerbus::loopback>>>;
using direct_processes = any_over<peerbus::any_transport, processes_over<peerbus::unified_bus>>;

}  // namespace test
