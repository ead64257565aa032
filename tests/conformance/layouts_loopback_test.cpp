// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/transport/loopback.hpp>

#include "conformance/layout_suite.hpp"
#include "support/ranks.hpp"

namespace layouts_loopback_test {

namespace {
using group = test::threads_over<peerbus::loopback>;
}  // namespace

TEST_CASE_TEMPLATE("every layout, outputs at either end, attachments", Codec, peerbus::codec::bf16,
                   peerbus::codec::int8_per_token) {
  for (const std::size_t n : test::sizes_for<group>()) conformance::check_layouts<group, Codec>(n);
}

TEST_CASE("more rows than a narrow count holds") {
  conformance::check_many_rows<group, peerbus::codec::int8_per_token>();
}

TEST_CASE("the same input gives the same bytes, every time") {
  for (const std::size_t n : {2U, 5U})
    conformance::check_layouts_repeatable<group, peerbus::codec::int8_per_token>(n);
}

}  // namespace layouts_loopback_test
