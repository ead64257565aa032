// SPDX-License-Identifier: MIT
#include <chrono>
#include <cstdint>
#include <ratio>

#include <doctest/doctest.h>

#include <peerbus/core/deadline.hpp>

namespace deadline_test {

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

TEST_CASE("deadline: the longest and shortest spans of any unit") {
  using hours_in_32_bits = std::chrono::duration<std::int32_t, std::ratio<3600>>;
  using seconds_in_double = std::chrono::duration<double>;
  for (const auto endless :
       {deadline::after(std::chrono::milliseconds::max()),
        deadline::after(std::chrono::hours::max()), deadline::after(hours_in_32_bits::max()),
        deadline::after(seconds_in_double{1e300}),
        deadline::after(std::chrono::duration<std::uint64_t, std::milli>::max())}) {
    CHECK_FALSE(endless.expired());
    CHECK(endless.remaining() == deadline::clock::duration::max());
  }
  for (const auto past :
       {deadline::after(deadline::clock::duration::min()),
        deadline::after(std::chrono::milliseconds::min()),
        deadline::after(std::chrono::hours::min()), deadline::after(hours_in_32_bits::min()),
        deadline::after(seconds_in_double{-1e300})}) {
    CHECK(past.expired());
    CHECK(past.remaining() == deadline::clock::duration::zero());
  }
}

TEST_CASE("deadline: spans within the range are converted as they are") {
  CHECK(deadline::saturated(-5ms) == -5ms);
  CHECK(deadline::saturated(0.25s) == 250ms);
  CHECK(deadline::saturated(9'223'372'036'854ms) == 9'223'372'036'854ms);
  CHECK(deadline::saturated(std::chrono::duration<std::int64_t, std::pico>{7'000}) == 7ns);
}

TEST_CASE("deadline: never, and spans that would wrap around") {
  for (const auto endless : {deadline::never(), deadline::after(deadline::clock::duration::max()),
                             deadline::after(deadline::clock::duration::max() - 1ns)}) {
    CHECK_FALSE(endless.expired());
    CHECK(endless.remaining() == deadline::clock::duration::max());
  }
}

}  // namespace deadline_test
