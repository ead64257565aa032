// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moe_text {

/// Throws: `std::invalid_argument` with the file's name and the reason.
std::string read_text(const std::string& file);

/// The words of UTF-8 text in lower case, in order: runs of letters, digits and marks. Bytes that
/// are not UTF-8 separate words like punctuation does.
std::vector<std::string> split_words(std::string_view text);

}  // namespace moe_text
