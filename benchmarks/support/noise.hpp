// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/statistics.hpp"

namespace bench {

/// Returns how many cores other programs keep busy, as the kernel counts over the next fifth of a
/// second. Called before a benchmark starts its ranks.
[[nodiscard]] double busy_cores();

/// Returns the signs, in words, that a measurement was disturbed; nothing if there are none. They
/// are other programs on more than a quarter of a core just before, and a p90 of more than twice
/// the median, of `times` by name.
[[nodiscard]] std::string signs_of_noise(
    double busy_cores, const std::vector<std::pair<std::string_view, statistics>>& times);

/// Prints that a program does not measure because of `signs`, as it was told by --quiet-or-fail.
/// Returns the exit status.
[[nodiscard]] int refuse_noise(const char* program, const std::string& signs);

}  // namespace bench
