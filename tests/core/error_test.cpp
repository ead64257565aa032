// SPDX-License-Identifier: MIT
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace error_test {

using peerbus::errc;

TEST_CASE("error: says what, and which code") {
  const peerbus::error caught{errc::out_of_memory, "need 688 MiB, have 200 MiB"};
  CHECK(std::string{caught.what()} == "peerbus: need 688 MiB, have 200 MiB [out of memory]");
  CHECK(caught.code() == errc::out_of_memory);
}

TEST_CASE("errc: every code has words of its own") {
  std::set<std::string_view> seen;
  for (std::uint32_t code = 0; code <= 12; ++code) {
    const auto words = peerbus::to_string(static_cast<errc>(code));
    CHECK(words != "unknown error code");
    CHECK(seen.insert(words).second);
  }
  CHECK(peerbus::to_string(static_cast<errc>(13)) == "unknown error code");
}

TEST_CASE("errc: the numbers that cross processes stay") {
  CHECK(static_cast<int>(errc::ok) == 0);
  CHECK(static_cast<int>(errc::mismatch) == 3);
  CHECK(static_cast<int>(errc::timed_out) == 5);
  CHECK(static_cast<int>(errc::peer_dead) == 6);
  CHECK(static_cast<int>(errc::system) == 10);
  CHECK(static_cast<int>(errc::unreachable) == 11);
  CHECK(static_cast<int>(errc::view_changed) == 12);
}

TEST_CASE("check: throws for all codes but ok") {
  CHECK_NOTHROW(peerbus::check(errc::ok, "nothing"));
  try {
    peerbus::check(errc::timed_out, "waiting for signal 3");
    FAIL("did not throw");
  } catch (const peerbus::error& caught) {
    CHECK(caught.code() == errc::timed_out);
    CHECK(std::string{caught.what()} == "peerbus: waiting for signal 3 [timed out]");
  }
}

TEST_CASE("concat: joins texts, numbers and ranks") {
  using peerbus::detail::concat;
  CHECK(concat() == "");
  CHECK(concat({"need ", 3U, " of ", std::string{"s"}}) == "need 3 of s");
  CHECK(concat("need ", std::size_t{3}, " of ", -4, ", ", std::string{"s"}) == "need 3 of -4, s");
  CHECK(concat(peerbus::rank_id{7}, " left") == "rank 7 left");
}

}  // namespace error_test
