// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <system_error>

#include <CLI/CLI.hpp>

namespace examples {

/// Checks a whole number and rewrites it in its plain form, because CLI11 would read 010 as octal.
inline CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  const std::string range = std::to_string(least) + " to " + std::to_string(most);
  return {[=](std::string& given) {
            std::uint64_t value = 0;
            const char* const end = given.data() + given.size();
            const auto [stop, code] = std::from_chars(given.data(), end, value);
            if (code != std::errc{} || stop != end || value < least || value > most)
              return "'" + given + "' given, expected a whole number from " + range;
            given = std::to_string(value);
            return std::string{};
          },
          range, "whole number"};
}

}  // namespace examples
