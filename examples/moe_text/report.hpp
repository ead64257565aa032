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

/// What is about to be done, and which words are the most frequent.
void print_introduction(const options& given, const std::vector<std::string>& words);

/// Everything that the ranks found. `rows_of_expert` is [experts].
/// Returns: whether all of it is right.
bool print_report(const options& given, std::size_t words, std::span<const rank_statistics> of_rank,
                  std::span<const std::uint64_t> rows_of_expert);

}  // namespace moe_text
