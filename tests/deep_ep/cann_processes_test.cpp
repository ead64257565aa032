// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/compat/cann.hpp>

#include "deep_ep/cann_suite.hpp"
#include "support/groups.hpp"

namespace cann_processes_test {

// CANN's operators between processes.

namespace {

using cann_suite::check;
using oracle::cann::world;
using peerbus::codec::int8_per_token;
using verbatim = peerbus::codec::bf16;
using processes = test::direct_processes;

}  // namespace

TEST_CASE("MoE and special experts, every group size") {
  for (const std::size_t ranks : test::sizes_for<processes>()) {
    const world of{
        .ranks = ranks, .top_k = 4, .moe = ranks * 2, .zero = 2, .copy = 1, .constant = 3};
    check<processes, verbatim>(of, 9, 6);
    check<processes, int8_per_token>(of, 9, 6, 3, 100);
  }
}

TEST_CASE("shared experts") {
  check<processes, verbatim>({.ranks = 4, .top_k = 3, .moe = 4, .shared = 1, .shared_ranks = 2}, 6,
                             6);
  check<processes, int8_per_token>({.ranks = 8,
                                    .hidden = 208,
                                    .top_k = 6,
                                    .moe = 8,
                                    .shared = 2,
                                    .shared_ranks = 4,
                                    .copy = 2,
                                    .constant = 2},
                                   6, 6, 3);
}

}  // namespace cann_processes_test
