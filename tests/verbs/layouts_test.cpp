// SPDX-License-Identifier: MIT
// ctest: timeout=400
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>

#include "conformance/layout_suite.hpp"
#include "support/same_bits.hpp"
#include "verbs/support.hpp"

TEST_CASE("every layout, outputs at either end, attachments") {
  for (const std::size_t n : {1U, 2U, 3U, 4U, 8U})
    conformance::check_layouts<verbs_test::any_plain, peerbus::codec::int8_per_token>(n, 1);
}

TEST_CASE("the bits of one token, beside which others differ") {
  using peerbus::codec::int8_per_token;
  for (const std::size_t n : {1U, 3U})
    same_bits::check_layouts<int8_per_token, verbs_test::any_plain>(n, 40 * n);
}
