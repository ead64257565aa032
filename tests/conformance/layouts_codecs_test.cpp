// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <cstddef>

#include <doctest/doctest.h>

#include <peerbus/codec/archetype.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/transport/loopback.hpp>

#include "conformance/layout_suite.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace layouts_codecs_test {

TEST_CASE_TEMPLATE("every layout with every other codec", Codec, peerbus::codec::archetype,
                   oracle::user_codec, peerbus::codec::fp8_e4m3_per_128_f32,
                   peerbus::codec::fp8_e4m3_per_128_ue8m0) {
  using group = test::threads_over<peerbus::loopback>;
  for (const std::size_t n : {1U, 3U, 5U}) conformance::check_layouts<group, Codec>(n);
}

}  // namespace layouts_codecs_test
