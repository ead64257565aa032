// SPDX-License-Identifier: MIT
// ctest: timeout=300
//
// Ranks of two pretended hosts over RDMA lose ranks and take in others.
#include "support/hosts_plan.hpp"

#include <chrono>
#include <cstddef>
#include <string>

#include <doctest/doctest.h>

#include <peerbus/transport/planes.hpp>
#include <peerbus/transport/unified_bus.hpp>
#include <peerbus/transport/verbs.hpp>

#include "support/hosts.hpp"
#include "support/plan.hpp"
#include "support/plan_file.hpp"

TEST_CASE("verbs: plans") {
  const std::size_t found = plans::for_each_plan({"small"}, [](const plans::plan& each) {
    hosts::play(each, hosts::over<peerbus::verbs>, std::chrono::milliseconds{50});
  });
  CHECK(found >= 9);
}

TEST_CASE("verbs: a rank that is stopped, or lives, is put out, learns it, and comes back") {
  hosts::check_eviction(hosts::over<peerbus::verbs>, {0, 1, 2}, 0, hosts::then::stopped);
  hosts::check_eviction(hosts::over<peerbus::verbs>, {0, 1}, 1, hosts::then::puts_them_out);
}

TEST_CASE("verbs: waits end when another rank puts somebody out") {
  hosts::check_waits_of_eviction(hosts::over<peerbus::verbs>,
                                 [](std::size_t slot) { return "host " + std::to_string(slot); });
}

TEST_CASE("planes: a host of near ranks goes, and comes back") {
  hosts::play({{{0, 1, 2, 3}, {}}, {{1, 3}, {0, 2}}, {{0, 1, 2, 3}, {}}},
              hosts::over<peerbus::planes<peerbus::unified_bus, peerbus::verbs>>,
              std::chrono::milliseconds{50});
}
