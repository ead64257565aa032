// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moe_text {

/// Returns the contents of `file`, which has at most 64 MiB.
/// Throws: `std::invalid_argument` with the file's name and the reason.
std::string read_text(const std::string& file);

/// Returns the words of UTF-8 text in lower case, in order. A word is a run of letters, digits and
/// marks. Bytes that are not UTF-8 separate words as punctuation does.
std::vector<std::string> split_words(std::string_view text);

}  // namespace moe_text
