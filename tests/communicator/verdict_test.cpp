// SPDX-License-Identifier: MIT
//
// What members tell each other of how they fared.
#include <array>
#include <cstddef>
#include <cstring>
#include <string>

#include <doctest/doctest.h>

#include <peerbus/communicator/verdict.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

namespace verdict_test {

using peerbus::errc;
using peerbus::error;
using peerbus::rank_id;
using peerbus::detail::verdict;

TEST_CASE("verdict: a text is cut, and one without an end ends with the verdict") {
  const verdict told{error{errc::system, std::string(1000, 'x')}};
  const std::string head = "rank 1: system error: ";
  const std::string cut = told.describe(rank_id{1});
  CHECK(cut == head + std::string(cut.size() - head.size(), 'x'));
  struct {
    verdict received;
    std::array<char, 8> after{"beyond"};
  } place;
  std::array<std::byte, sizeof told> bytes;
  std::memcpy(bytes.data(), &told, sizeof told);
  bytes.back() = std::byte{'x'};
  std::memcpy(&place.received, bytes.data(), sizeof told);
  CHECK(place.received.describe(rank_id{1}) == cut + "x");
  CHECK(verdict{}.code() == errc::ok);
}

}  // namespace verdict_test
