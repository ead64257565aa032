// SPDX-License-Identifier: MIT
// ctest: search serial timeout=86400
#include "support/kills.hpp"

#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/local.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "bootstrap/support.hpp"

namespace kills_test {

TEST_CASE("unified_bus: a rank ends at a random moment, again and again") {
  kills::check_many<peerbus::unified_bus, test::as_local>(8);
}

}  // namespace kills_test
