// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <vector>

/// Plans of groups that lose ranks and take in others (support/plan.hpp).
namespace plans {

using slots = std::vector<std::size_t>;

constexpr std::size_t most_slots = 16;

inline bool has(const slots& set, std::size_t slot) {
  return std::find(set.begin(), set.end(), slot) != set.end();
}

/// Returns those of the slots `some` that `members` has.
inline slots among(const slots& members, const slots& some) {
  slots found;
  std::copy_if(some.begin(), some.end(), std::back_inserter(found),
               [&](std::size_t slot) { return has(members, slot); });
  return found;
}

struct phase {
  slots serve;  ///< those that are there at its end, ascending
  slots killed;
  slots killed_in_agreement = {};  ///< once others have begun to go on without one of `killed`
  slots evicted = {};

  [[nodiscard]] bool names(std::size_t slot) const { return has(all(), slot); }
  /// Returns all that it names, ascending.
  [[nodiscard]] slots all() const {
    slots every = serve;
    for (const slots* const more : {&killed, &killed_in_agreement, &evicted})
      every.insert(every.end(), more->begin(), more->end());
    std::sort(every.begin(), every.end());
    return every;
  }
};
using plan = std::vector<phase>;

}  // namespace plans
