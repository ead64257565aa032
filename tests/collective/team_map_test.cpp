// SPDX-License-Identifier: MIT
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/collective/team.hpp>
#include <peerbus/collective/team_map.hpp>
#include <peerbus/core/rank.hpp>

namespace team_map_test {

namespace {
using peerbus::rank_id;
using peerbus::collective::team_map;
}  // namespace

TEST_CASE("pages and slots lie apart, within the scratch memory") {
  for (const bool has_slots : {false, true})
    for (const std::size_t ranks : {1U, 2U, 3U, 7U, 64U, 1000U})
      for (const std::size_t scratch : {0U, 100U, 4096U, 1U << 20U}) {
        CAPTURE(has_slots);
        CAPTURE(ranks);
        CAPTURE(scratch);
        const team_map map{ranks, scratch, has_slots};
        std::vector<std::pair<std::size_t, std::size_t>> ranges;
        for (const std::uint64_t round : {6U, 7U}) {
          ranges.emplace_back(map.page_at(round), team_map::header_bytes + map.page_bytes);
          for (const rank_id source : peerbus::all_ranks{map.slot_bytes == 0 ? 0 : ranks})
            ranges.emplace_back(map.slot_at(round, source),
                                team_map::header_bytes + map.slot_bytes);
        }
        std::size_t end = 0;
        for (const auto& [offset, bytes] : ranges) {
          CHECK(offset == end);
          CHECK(offset % 64 == 0);
          end = offset + bytes;
        }
        CHECK(end == map.window_bytes());
        if (map.slice_bytes(ranks) != 0) CHECK(map.window_bytes() <= scratch);
        for (const std::size_t parts : {std::size_t{1}, ranks}) {
          CHECK(map.slice_bytes(parts) % 64 == 0);
          CHECK(parts * map.slice_bytes(parts) <= map.page_bytes);
          if (has_slots) CHECK(map.slice_bytes(parts) <= map.slot_bytes);
        }
      }
}

TEST_CASE("memory that a team has by default") {
  const std::size_t scratch = peerbus::collective::team_options{}.scratch_bytes;
  CHECK(team_map{8, scratch, false}.slice_bytes(1) >= std::size_t{500} << 10U);
  CHECK(team_map{8, scratch, true}.slice_bytes(8) >= std::size_t{30} << 10U);
  for (const std::size_t ranks : {1U, 8U, 64U}) {
    CHECK(team_map{ranks, scratch, false}.total_bytes() <= std::size_t{2} << 20U);
    CHECK(team_map{ranks, scratch, true}.total_bytes() <= std::size_t{2} << 20U);
  }
}

}  // namespace team_map_test
