// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "options.hpp"
#include "verdict.hpp"

namespace deep_ep_check {

/// Returns the report as text for people.
std::string report_text(const options& chosen, const std::vector<verdict>& verdicts,
                        const std::optional<memory>& needed);

/// Returns the report as JSON for programs. docs/profiles.md has the keys.
std::string report_json(const options& chosen, const std::vector<verdict>& verdicts,
                        const std::optional<memory>& needed);

}  // namespace deep_ep_check
