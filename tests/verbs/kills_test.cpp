// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include "support/kills.hpp"

#include <doctest/doctest.h>

#include <peerbus/transport/verbs.hpp>

#include "bootstrap/support.hpp"

TEST_CASE("verbs: a rank ends at a random moment, again and again") {
  // Of which an emulated processor does a tenth.
  kills::check_many<peerbus::verbs, test::as_local>(4, 670);
}
