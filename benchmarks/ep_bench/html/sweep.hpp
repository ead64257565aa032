// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "ep_bench/figures.hpp"
#include "ep_bench/options.hpp"

namespace ep_bench {

/// One configuration of a report, and what came of it.
struct sweep_point {
  std::size_t ranks = 0;
  std::size_t tokens = 0;
  std::string left_out;  ///< why it was not measured, or could not be; empty if it was
  bool failed = false;   ///< whether that is an error
  figures found{};
  std::string placement;
  std::size_t cores = 0;
  std::size_t iterations = 0;
  std::size_t dispatch_bytes = 0;
  std::size_t combine_bytes = 0;
  bool crowded = false;
};

/// Measures every configuration of the report, each with a group of ranks of its own that comes and
/// goes: `chosen.ranks` ranks over `chosen.report_tokens`, then `chosen.report_ranks` over
/// `chosen.tokens` tokens. Stays near `chosen.report_seconds` in all; shows on stderr how far it
/// is, if that is a terminal.
/// Throws: `peerbus::error` if a group cannot be started at all.
[[nodiscard]] std::vector<sweep_point> sweep(const options& chosen);

}  // namespace ep_bench
