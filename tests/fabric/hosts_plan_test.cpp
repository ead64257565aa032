// SPDX-License-Identifier: MIT
// ctest: serial timeout=300
//
// Ranks of two pretended hosts lose ranks and take in others, by the plans of one host.
#include "support/hosts_plan.hpp"

#include <chrono>
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/transport/fabric.hpp>
#include <peerbus/transport/planes.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "fabric/support.hpp"
#include "support/hosts.hpp"
#include "support/plan.hpp"
#include "support/plan_file.hpp"

TEST_CASE("planes: plans") {
  const std::size_t found = plans::for_each_plan({"small"}, [](const plans::plan& each) {
    hosts::play(each, hosts::over<peerbus::planes<peerbus::unified_bus, peerbus::fabric>>,
                std::chrono::milliseconds{0});
  });
  CHECK(found >= 9);
}
