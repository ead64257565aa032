// SPDX-License-Identifier: MIT
#include "read_system.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <system_error>

namespace peerbus_doctor {

std::string read_text(const std::string& path) {
  std::ifstream file{path};
  std::string text{std::istreambuf_iterator<char>{file}, {}};
  const auto end = text.find_last_not_of(" \n\t");
  text.resize(end == std::string::npos ? 0 : end + 1);
  return text;
}

std::vector<std::string> read_lines(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file{path};
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::optional<std::uint64_t> leading_number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  std::uint64_t value = 0;
  const auto [stop, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc{}) return std::nullopt;
  return value;
}

std::vector<std::uint32_t> parse_list(std::string_view text) {
  std::vector<std::uint32_t> numbers;
  while (!text.empty()) {
    const std::string_view range = text.substr(0, text.find(','));
    text.remove_prefix(std::min(range.size() + 1, text.size()));
    const auto dash = range.find('-');
    const auto first = leading_number(range);
    const auto last =
        dash == std::string_view::npos ? first : leading_number(range.substr(dash + 1));
    if (!first || !last) continue;
    for (std::uint64_t number = *first; number <= *last; ++number)
      numbers.push_back(static_cast<std::uint32_t>(number));
  }
  return numbers;
}

}  // namespace peerbus_doctor
