// SPDX-License-Identifier: MIT
#include <chrono>

#include <doctest/doctest.h>

#include <peerbus/core/deadline.hpp>

using peerbus::deadline;
using namespace std::chrono_literals;

TEST_CASE("deadline: after a span") {
  const auto before = deadline::clock::now();
  const auto in_an_hour = deadline::after(1h);
  const auto after = deadline::clock::now();
  CHECK(in_an_hour.when() >= before + 1h);
  CHECK(in_an_hour.when() <= after + 1h);
  CHECK_FALSE(in_an_hour.expired());
  CHECK(in_an_hour.remaining() <= 1h);
  CHECK(in_an_hour.remaining() > 59min);
}

TEST_CASE("deadline: past ones are expired and have nothing left") {
  for (const auto past : {deadline::after(0s), deadline::after(-1h)}) {
    CHECK(past.expired());
    CHECK(past.remaining() == deadline::clock::duration::zero());
  }
}

TEST_CASE("deadline: never, and spans that would wrap around") {
  for (const auto endless : {deadline::never(), deadline::after(deadline::clock::duration::max()),
                             deadline::after(deadline::clock::duration::max() - 1ns)}) {
    CHECK_FALSE(endless.expired());
    CHECK(endless.remaining() == deadline::clock::duration::max());
  }
}
