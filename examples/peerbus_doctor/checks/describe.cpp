// SPDX-License-Identifier: MIT
#include "describe.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include <peerbus/core/text.hpp>

#include "facts.hpp"

namespace peerbus_doctor {

using peerbus::concat;

std::string describe_decimal(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), value < 100 ? "%.3g" : "%.0f", value);
  return text.data();
}

std::string describe_fixed(double value, int digits) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string describe_numbers(const std::vector<std::size_t>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += concat(text.empty() ? "" : ", ", numbers[i]);
    if (last > i) text += concat(last == i + 1 ? ", " : "-", numbers[last]);
    i = last + 1;
  }
  return text;
}

std::string describe_bytes(std::uint64_t bytes) {
  if (bytes == unlimited) return "no limit";
  constexpr std::array units{"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return concat(describe_decimal(value), " ", units[unit]);
}

std::string describe_cores(const std::vector<std::uint32_t>& cores) {
  return cores.empty() ? "none" : describe_numbers({cores.begin(), cores.end()});
}

std::string report_line(std::string_view name, std::string_view text) {
  std::string padded{name};
  padded.resize(std::max<std::size_t>(padded.size(), 11), ' ');
  return concat("  ", padded, " ", text, "\n");
}

}  // namespace peerbus_doctor
