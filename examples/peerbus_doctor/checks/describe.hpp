// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace peerbus_doctor {

/// Returns a number with three digits, or more if it is larger.
std::string describe_decimal(double value);

/// Returns a number with `digits` digits behind the point.
std::string describe_fixed(double value, int digits);

/// Returns numbers as "0-3, 8".
std::string describe_numbers(const std::vector<std::size_t>& numbers);

/// Returns a number of bytes such as "8 MiB", or "no limit".
std::string describe_bytes(std::uint64_t bytes);

/// Returns the numbers of cores, or "none".
std::string describe_cores(const std::vector<std::uint32_t>& cores);

/// Returns a line of a report: `name` in a column of its own, then `text`.
std::string report_line(std::string_view name, std::string_view text);

}  // namespace peerbus_doctor
