// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "ep_bench/options.hpp"

namespace ep_bench {

/// Measures many configurations, each with a group of ranks of its own, and writes one page to
/// `chosen.report` and, if wanted, its JSON to `chosen.json`. First come `chosen.ranks` ranks over
/// `chosen.report_tokens`, then `chosen.report_ranks` over `chosen.tokens` tokens. Stays near
/// `chosen.report_seconds` in all. Shows on stderr how far it is, if that is a terminal. `command`
/// is how the program was called.
/// Returns: the exit status, 1 if the check of any configuration failed or a group did.
/// Throws: `peerbus::error` if a group cannot be started, the page cannot be written or a file of
/// `chosen.peers` has no results.
[[nodiscard]] int write_report(const options& chosen, const std::vector<std::string>& command);

}  // namespace ep_bench
