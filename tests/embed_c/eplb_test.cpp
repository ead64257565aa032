// SPDX-License-Identifier: MIT
#include <peerbus.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "embed_c/ranks_of_c.hpp"

namespace eplb_test {

// Plans for C: EPLB's tables, and bad arguments, of which nothing is written.

namespace {

using embed_c::fails;
using embed_c::ok;
using numbers = std::vector<std::int64_t>;

// The example of EPLB's README, two layers.
const std::vector<double> loads{90, 132, 40,  61, 104, 165, 39,  4,   73,  56, 183, 86,
                                20, 107, 104, 64, 19,  197, 187, 157, 172, 86, 16,  27};
const numbers published{5, 6,  5, 7, 8, 4,  3, 4, 10, 9, 10, 2, 0, 1, 11, 1,
                        7, 10, 6, 8, 6, 11, 8, 9, 2,  4, 5,  1, 5, 0, 3,  1};
const numbers counts{1, 2, 1, 1, 2, 2, 1, 1, 1, 1, 2, 1, 1, 2, 1, 1, 1, 2, 2, 1, 2, 1, 1, 1};

peerbus_eplb_args example() {
  return {.struct_bytes = sizeof(peerbus_eplb_args),
          .planner = PEERBUS_EPLB_PUBLISHED,
          .layers = 2,
          .experts = 12,
          .slots = 16,
          .groups = 4,
          .nodes = 2,
          .ranks = 8,
          .loads = loads.data(),
          .old_map = nullptr,
          .least_gain = 0,
          .most_moves = 0,
          .fixed_slots = 0};
}

/// Tables for the example, in which no entry is a result.
struct tables {
  numbers map = numbers(32, -7);
  numbers replicas = numbers(32, -7);
  numbers count = numbers(24, -7);
  numbers moves = numbers(2, -7);

  peerbus_eplb_tables view() {
    return {
        sizeof(peerbus_eplb_tables), 0, map.data(), replicas.data(), count.data(), moves.data()};
  }
};

TEST_CASE("a plan for C has EPLB's tables") {
  const peerbus_eplb_args args = example();
  tables found;
  const peerbus_eplb_tables view = found.view();
  ok(peerbus_eplb_plan(&args, &view), "plan");
  CHECK(found.map == published);
  CHECK(found.count == counts);
  CHECK(found.moves == numbers{0, 0});
  // Expert 1 of the first layer has the slots 15 and 13, in this order.
  CHECK(found.replicas[15] == 0);
  CHECK(found.replicas[13] == 1);
  // Only the map is needed.
  tables few;
  peerbus_eplb_tables only = few.view();
  only.replica_of_slot = only.expert_count = only.moves = nullptr;
  ok(peerbus_eplb_plan(&args, &only), "plan");
  CHECK(few.map == published);
  CHECK(few.count == numbers(24, -7));
}

TEST_CASE("the other planners for C") {
  peerbus_eplb_args args = example();
  args.planner = PEERBUS_EPLB_SPREAD;
  tables spread;
  peerbus_eplb_tables view = spread.view();
  ok(peerbus_eplb_plan(&args, &view), "spread");
  for (std::size_t s = 0; s < 32; s += 2) CHECK(spread.map[s] != spread.map[s + 1]);
  CHECK(spread.moves == numbers{0, 0});

  args.planner = PEERBUS_EPLB_INCREMENTAL;
  numbers old;  // Expert 0 to 11, then 2, 3, 4, 5 once more, on 8 ranks.
  for (std::int64_t s = 0; s < 32; ++s) old.push_back(s % 16 < 12 ? s % 16 : s % 16 - 10);
  args.old_map = old.data();
  args.most_moves = 3;
  tables found;
  view = found.view();
  ok(peerbus_eplb_plan(&args, &view), "incremental");
  for (std::size_t layer = 0; layer < 2; ++layer) {
    std::int64_t changed = 0;
    for (std::size_t s = layer * 16; s < layer * 16 + 16; ++s)
      changed += found.map[s] != old[s] ? 1 : 0;
    CHECK(found.moves[layer] == changed);
    CHECK(changed >= 1);
    CHECK(changed <= 3);
  }
  args.least_gain = 1;
  ok(peerbus_eplb_plan(&args, &view), "incremental");
  CHECK(found.map == old);
  args.least_gain = 0;
  args.fixed_slots = 2;  // All.
  ok(peerbus_eplb_plan(&args, &view), "incremental");
  CHECK(found.map == old);
}

/// Plans after `spoil(args, view)`, which must fail and write nothing.
template <class Spoil>
void refuses(std::string_view says, Spoil spoil) {
  CAPTURE(says);
  peerbus_eplb_args args = example();
  tables found;
  peerbus_eplb_tables view = found.view();
  spoil(args, view);
  fails(peerbus_eplb_plan(&args, &view), PEERBUS_INVALID_ARGUMENT, says);
  CHECK(found.map == numbers(32, -7));
  CHECK(found.count == numbers(24, -7));
}

TEST_CASE("a plan for C refuses bad arguments") {
  const peerbus_eplb_args args = example();
  tables found;
  const peerbus_eplb_tables view = found.view();
  fails(peerbus_eplb_plan(nullptr, &view), PEERBUS_INVALID_ARGUMENT, "args is NULL");
  fails(peerbus_eplb_plan(&args, nullptr), PEERBUS_INVALID_ARGUMENT, "tables is NULL");
  refuses("args.struct_bytes is 8", [](auto& a, auto&) { a.struct_bytes = 8; });
  refuses("tables.struct_bytes is 8", [](auto&, auto& t) { t.struct_bytes = 8; });
  refuses("args.planner is unknown", [](auto& a, auto&) { a.planner = 3; });
  refuses("args.planner is unknown", [](auto& a, auto&) { a.planner = -1; });
  refuses("args.loads is NULL", [](auto& a, auto&) { a.loads = nullptr; });
  refuses("tables.physical_to_logical is NULL",
          [](auto&, auto& t) { t.physical_to_logical = nullptr; });
  refuses("args.old_map is NULL", [](auto& a, auto&) { a.planner = PEERBUS_EPLB_INCREMENTAL; });
  refuses("0 groups (num_groups)", [](auto& a, auto&) { a.groups = 0; });
  refuses("16 slots (num_replicas) on 7 ranks", [](auto& a, auto&) { a.ranks = 7; });
  refuses("spread: 16 slots (num_replicas) on 7 ranks", [](auto& a, auto&) {
    a.planner = PEERBUS_EPLB_SPREAD;
    a.ranks = 7;
  });
  // The second layer is bad, and the first is not written either.
  std::vector<double> negative = loads;
  negative[13] = -1;
  refuses("eplb: the load of expert 1 is -1", [&](auto& a, auto&) { a.loads = negative.data(); });
  numbers old(32, -1);
  refuses("old_map[0] is", [&](auto& a, auto&) {
    a.planner = PEERBUS_EPLB_INCREMENTAL;
    a.old_map = old.data();
  });
}

}  // namespace
}  // namespace eplb_test
