// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "support/json.hpp"

namespace bench {

/// Returns what the JSON of a report begins with: the version of peerbus, the time now, and
/// `command`, by which the program was called.
[[nodiscard]] json report_head(const std::vector<std::string>& command);

/// Creates or replaces `path` with a page that shows `results`, the JSON of a benchmark. The page
/// is one file that needs no network: index.html with the scripts, their licences and the JSON in
/// it. Throws: `peerbus::error` system if it cannot be written.
void write_page(const std::string& path, std::string_view results);

}  // namespace bench
