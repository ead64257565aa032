// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "support/plan.hpp"
#include "support/ranks.hpp"

/// Plans (support/plan.hpp) in JSON: lists of ranks, of which a negative one (-0.0 is rank 0) is
/// killed in its phase.
namespace plans {

/// Throws what says which phase is wrong: a rank beyond `most_ranks`, named twice, or nobody left.
inline plan read_plan(const nlohmann::json& phases) {
  plan made;
  for (const auto& numbers : phases) {
    phase& next = made.emplace_back();
    slots named;
    test::expect(numbers.is_array(), "phase ", made.size(), ": expected a list of ranks");
    for (const double rank : numbers) {
      const auto number = static_cast<std::size_t>(std::fabs(rank));
      test::expect(number < most_slots, "phase ", made.size(), ": rank ", rank,
                   ", expected less than ", most_slots);
      test::expect(!has(named, number), "phase ", made.size(), ": rank ", number, " twice");
      named.push_back(number);
      (std::signbit(rank) ? next.killed : next.serve).push_back(number);
    }
    test::expect(!next.serve.empty(), "phase ", made.size(), ": expected a rank that lives");
    std::sort(next.serve.begin(), next.serve.end());
  }
  return made;
}

/// Calls `play(plan)` with each plan of the files `names` in tests/faults/plans. Returns how many
/// there are.
template <class F>
std::size_t for_each_plan(std::initializer_list<const char*> names, F play) {
  const auto tests = std::filesystem::path{__FILE__}.parent_path().parent_path();
  std::size_t found = 0;
  for (const std::string name : names) {
    std::ifstream text{tests / "faults" / "plans" / (name + ".json")};
    const auto read = nlohmann::json::parse(text);
    for (const auto& each : read.items()) {
      CAPTURE(each.key());
      play(read_plan(each.value()));
      ++found;
    }
  }
  return found;
}

}  // namespace plans
