// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/compat/cann.hpp>

#include "deep_ep/cann_suite.hpp"
#include "support/groups.hpp"

namespace cann_test {

// CANN's operators with MoE and special experts, masks, uneven and empty batches.

namespace {

using cann_suite::check;
using oracle::cann::world;
using peerbus::codec::int8_per_token;
using verbatim = peerbus::codec::bf16;
using direct = test::direct_threads;
using staged = test::staged_threads;

}  // namespace

TEST_CASE("MoE experts, every group size") {
  for (const std::size_t ranks : test::sizes_for<direct>()) {
    const world of{.ranks = ranks, .top_k = 3, .moe = ranks * 3};
    check<direct, verbatim>(of, 9, 8);
    check<direct, int8_per_token>(of, 9, 8, 1, 100);
    check<staged, int8_per_token>(of, 9, 4, 1, 200);
  }
}

TEST_CASE("zero, copy and constant experts") {
  for (const std::size_t ranks : test::sizes_for<direct>()) {
    check<direct, verbatim>(
        {.ranks = ranks, .top_k = 4, .moe = ranks * 2, .zero = 2, .copy = 1, .constant = 3}, 7, 8);
    check<direct, int8_per_token>({.ranks = ranks, .top_k = 3, .moe = ranks, .zero = 4}, 7, 4);
    check<direct, verbatim>({.ranks = ranks, .top_k = 3, .moe = ranks, .copy = 4}, 7, 4);
    check<staged, int8_per_token>({.ranks = ranks, .top_k = 3, .moe = ranks, .constant = 4}, 7, 4);
  }
}

TEST_CASE("K from 1 to 16, also more than there are MoE experts") {
  for (std::size_t k = 1; k <= 16; ++k) {
    check<direct, verbatim>({.ranks = 2, .top_k = k, .moe = 6, .zero = 4, .copy = 4, .constant = 4},
                            5, 3);
    check<direct, int8_per_token>({.ranks = 3, .top_k = k, .moe = 18}, 5, 3);
  }
  check<direct, verbatim>({.ranks = 1, .top_k = 16, .moe = 1, .copy = 15}, 5, 3);
}

TEST_CASE("three batches in flight") {
  const world of{.ranks = 3, .top_k = 4, .moe = 6, .zero = 1, .copy = 1, .constant = 1};
  check<direct, int8_per_token>(of, 6, 12, 3);
  check<staged, verbatim>(of, 6, 12, 3, 50);
}

TEST_CASE("a hidden size that is no power of two, and larger batches") {
  check<direct, int8_per_token>({.ranks = 2, .hidden = 208, .top_k = 8, .moe = 32, .constant = 2},
                                130, 2);
}

}  // namespace cann_test
