// SPDX-License-Identifier: MIT
#include <cstddef>
#include <initializer_list>

#include <doctest/doctest.h>

#include <peerbus/core/align.hpp>

namespace align_test {

TEST_CASE("align_up: the least multiple that is not less") {
  for (std::size_t alignment : {1U, 2U, 3U, 16U, 64U, 4096U})
    for (std::size_t bytes = 0; bytes < 300; ++bytes) {
      const std::size_t up = peerbus::align_up(bytes, alignment);
      CHECK(up % alignment == 0);
      CHECK(up >= bytes);
      CHECK(up - bytes < alignment);
    }
  static_assert(peerbus::align_up(65, peerbus::cache_line_bytes) == 128);
}

}  // namespace align_test
