// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace peerbus_doctor {

/// Returns a number with three digits, or more if it is larger.
std::string describe_decimal(double value);

/// Returns numbers as "0-3, 8".
std::string describe_numbers(const std::vector<std::size_t>& numbers);

/// Returns a number of bytes such as "8 MiB", or "no limit".
std::string describe_bytes(std::uint64_t bytes);

}  // namespace peerbus_doctor
