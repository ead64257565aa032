// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace peerbus_doctor {

/// Returns the content of a file without white space at its end. Empty if it cannot be read.
std::string read_text(const std::string& path);

/// Returns the lines of a file.
std::vector<std::string> read_lines(const std::string& path);

/// Returns the number at the beginning of `text`, after spaces.
std::optional<std::uint64_t> leading_number(std::string_view text);

/// Returns the numbers that a list such as "0-3,8" names, in ascending order. This is the form in
/// which the kernel writes sets of cores.
std::vector<std::uint32_t> parse_list(std::string_view text);

}  // namespace peerbus_doctor
