// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "options.hpp"
#include "statistics.hpp"

namespace moe_text {

/// Prints the configuration and the most frequent words.
void print_introduction(const options& given, const std::vector<std::string>& words);

/// Prints the results of all ranks. `statistics` is [ranks] and `rows_of_expert` is [ranks,
/// experts].
/// Returns: whether all results are right.
bool print_report(const options& given, std::size_t words,
                  std::span<const rank_statistics> statistics,
                  std::span<const std::uint64_t> rows_of_expert);

}  // namespace moe_text
