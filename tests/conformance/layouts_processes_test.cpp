// SPDX-License-Identifier: MIT
// ctest: timeout=400
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "conformance/layout_suite.hpp"
#include "support/indirect.hpp"
#include "support/ranks.hpp"

namespace layouts_processes_test {

namespace {
using unified_bus = test::processes_over<peerbus::unified_bus>;
using indirect = test::processes_over<test::indirect<peerbus::unified_bus>>;
using direct = test::any_over<peerbus::any_transport, unified_bus>;
using staged = test::any_over<peerbus::any_transport, indirect>;
}  // namespace

TEST_CASE("every layout, outputs at either end, attachments") {
  for (const std::size_t n : test::sizes_for<direct>()) {
    conformance::check_layouts<direct, peerbus::codec::int8_per_token>(n);
    conformance::check_layouts<staged, peerbus::codec::bf16>(n);
  }
  conformance::check_layouts<staged, peerbus::codec::int8_per_token>(3);
}

TEST_CASE("more rows than a narrow count holds") {
  conformance::check_many_rows<direct, peerbus::codec::int8_per_token>();
  conformance::check_many_rows<staged, peerbus::codec::bf16>();
}

TEST_CASE("the same input gives the same bytes, every time") {
  conformance::check_layouts_repeatable<direct, peerbus::codec::int8_per_token>(4);
  conformance::check_layouts_repeatable<staged, peerbus::codec::bf16>(4);
}

}  // namespace layouts_processes_test
