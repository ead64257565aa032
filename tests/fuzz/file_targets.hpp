// SPDX-License-Identifier: MIT
#pragma once

// What tests and benchmarks read from files that somebody wrote: plans of groups that change, and
// the tables of expert ids of `ep_bench --routing`.

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>

#include <nlohmann/json.hpp>

#include "../benchmarks/support/npy.hpp"
#include "fuzz/bytes.hpp"
#include "support/phases.hpp"
#include "support/ranks.hpp"
#include "support/read_plan.hpp"

namespace fuzz {

/// A plan in JSON: refused by a text that says what is wrong, or one that a job can play.
inline void read_plan_file(bytes given) {
  plans::plan read;
  try {
    read = plans::read_plan(nlohmann::json::parse(text_of(given)));
  } catch (const nlohmann::json::exception&) {
    return;
  } catch (const test::failure&) {
    return;
  }
  expect(!read.empty(), "a phase");
  for (const plans::phase& each : read) {
    const plans::slots all = each.all();
    expect(!each.serve.empty(), "a rank that stays");
    expect(std::adjacent_find(all.begin(), all.end()) == all.end(), "each rank once");
    expect(all.back() < plans::most_slots, "ranks that there is room for");
  }
}

/// A table of whole numbers, as numpy saves it.
inline void read_table(bytes given) {
  const auto file = file_with(given);
  try {
    const auto read = bench::npy_table::read(path_of(file));
    expect(read.values.size() == read.rows * read.columns, "a value for each place");
    expect(read.values.size() <= given.size(), "no more than the file has");
  } catch (const std::runtime_error& refusal) {
    expect(std::string_view{refusal.what()}.size() > 10, "a reason");
  }
}

/// The targets of this file.
inline constexpr std::array file_targets{
    target{"file_plans", read_plan_file},
    target{"file_tables", read_table},
};

}  // namespace fuzz
