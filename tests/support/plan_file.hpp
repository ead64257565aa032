// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "support/phases.hpp"
#include "support/read_plan.hpp"

namespace plans {

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
