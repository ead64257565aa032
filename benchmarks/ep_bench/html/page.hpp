// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "ep_bench/options.hpp"

namespace ep_bench {

/// Measures over `chosen.report_tokens` and over `chosen.report_ranks`, each configuration in a
/// group of its own, and writes one page without any dependency to `chosen.report`. `command` is
/// how the program was called.
/// Returns: the exit status, 1 if the check of any configuration failed or a group did.
/// Throws: `peerbus::error` if the page cannot be written or the peers' results cannot be read.
[[nodiscard]] int write_page(const options& chosen, const std::vector<std::string>& command);

}  // namespace ep_bench
