// SPDX-License-Identifier: MIT
#include <cstddef>
#include <initializer_list>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/rank.hpp>

namespace rank_test {

using peerbus::all_ranks;
using peerbus::rank_id;

TEST_CASE("rank_id: order and index") {
  CHECK(rank_id{}.index() == 0);
  CHECK(rank_id{3} == rank_id{3});
  CHECK(rank_id{3} < rank_id{10});
  static_assert(!std::is_convertible_v<std::size_t, rank_id>);
  static_assert(!std::is_convertible_v<rank_id, std::size_t>);
  static_assert(std::is_trivially_copyable_v<rank_id>);
}

TEST_CASE("all_ranks: each once, ascending") {
  for (std::size_t size : {0U, 1U, 5U}) {
    std::vector<rank_id> seen;
    for (const rank_id rank : all_ranks{size}) seen.push_back(rank);
    REQUIRE(seen.size() == size);
    CHECK(all_ranks{size}.size() == size);
    for (std::size_t i = 0; i < size; ++i) {
      CHECK(seen[i] == rank_id{i});
      CHECK(all_ranks{size}[i] == seen[i]);
    }
  }
}

}  // namespace rank_test
