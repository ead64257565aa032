// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <nlohmann/json.hpp>

#include "support/phases.hpp"
#include "support/ranks.hpp"

/// Plans (support/plan.hpp) in JSON. A phase is a list of ranks, of which a negative one (-0.0 is
/// rank 0) is killed in it, or an object that has such a list as "ranks", and lists of others:
/// "killed_in_agreement" and "evicted".
namespace plans {

/// Throws what says which phase is wrong: a rank beyond `most_slots`, named twice, or not there to
/// be put out, or nobody left.
inline plan read_plan(const nlohmann::json& phases) {
  test::expect(phases.is_array() && !phases.empty(), "a list of phases");
  plan made;
  for (const auto& text : phases) {
    const slots before = made.empty() ? slots{} : made.back().serve;
    phase& next = made.emplace_back();
    const auto expect = [&](bool holds, const auto&... what) {
      test::expect(holds, "phase ", made.size(), ": ", what...);
    };
    slots named;
    const auto add = [&](const nlohmann::json& numbers, slots& positive, slots& negative) {
      expect(numbers.is_array(), "a list of ranks");
      for (const double rank : numbers) {
        // Larger numbers have no place in an integer.
        expect(std::fabs(rank) < most_slots, "rank ", rank, " less than ", most_slots);
        const auto number = static_cast<std::size_t>(std::fabs(rank));
        expect(static_cast<double>(number) == std::fabs(rank), "a whole number as rank ", rank);
        expect(!has(named, number), "rank ", number, " once");
        named.push_back(number);
        (std::signbit(rank) ? negative : positive).push_back(number);
      }
    };
    add(text.is_object() ? text.at("ranks") : text, next.serve, next.killed);
    const auto add_others = [&](const char* key, slots& to) {
      if (!text.is_object() || !text.contains(key)) return;
      add(text.at(key), to, to);
      expect(among(before, to) == to, key, " of the phase before");
    };
    add_others("killed_in_agreement", next.killed_in_agreement);
    add_others("evicted", next.evicted);
    expect(next.killed_in_agreement.empty() || !among(before, next.killed).empty(),
           "a rank that is killed, so that the others agree");
    expect(!next.serve.empty(), "a rank that stays");
    std::sort(next.serve.begin(), next.serve.end());
  }
  return made;
}

}  // namespace plans
