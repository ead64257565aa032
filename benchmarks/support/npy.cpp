// SPDX-License-Identifier: MIT
#include "support/npy.hpp"

#include <cstring>
#include <fstream>
#include <ios>
#include <iterator>
#include <optional>
#include <regex>
#include <stdexcept>
#include <string>

namespace bench {
namespace {

/// The number of type `Number` at `at`.
template <class Number>
std::int64_t number_at(const char* at) noexcept {
  Number value{};
  std::memcpy(&value, at, sizeof value);
  return static_cast<std::int64_t>(value);
}

struct integers {
  std::size_t bytes;
  std::int64_t (*at)(const char*) noexcept;
};

/// Returns how to read the numbers that numpy calls `type`, little-endian integers.
std::optional<integers> integers_of(const std::string& type) {
  if (type == "<i8") return integers{8, number_at<std::int64_t>};
  if (type == "<i4") return integers{4, number_at<std::int32_t>};
  if (type == "<i2") return integers{2, number_at<std::int16_t>};
  if (type == "|i1") return integers{1, number_at<std::int8_t>};
  if (type == "<u4") return integers{4, number_at<std::uint32_t>};
  if (type == "<u2") return integers{2, number_at<std::uint16_t>};
  if (type == "|u1") return integers{1, number_at<std::uint8_t>};
  return std::nullopt;
}

/// Returns what `pattern` captures in the header of the file.
std::string field_of(const std::string& header, const char* name, const char* pattern) {
  std::smatch found;
  if (!std::regex_search(header, found, std::regex{std::string{"'"} + name + "': *" + pattern}))
    throw std::runtime_error{"has no " + std::string{name} +
                             " in its header, or another kind: " + header.substr(0, 200)};
  return found[1];
}

}  // namespace

npy_table npy_table::read(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  const std::string bytes{std::istreambuf_iterator<char>{file}, {}};
  constexpr std::size_t before_length = 8;
  if (bytes.size() < before_length + 4 || bytes.compare(0, 6, "\x93NUMPY") != 0)
    throw std::runtime_error{"is no .npy file, which begins with \\x93NUMPY"};
  const bool is_long = bytes[6] != 1;
  const std::size_t length = is_long
                                 ? static_cast<std::size_t>(number_at<std::uint32_t>(&bytes[8]))
                                 : static_cast<std::size_t>(number_at<std::uint16_t>(&bytes[8]));
  const std::size_t begin = before_length + (is_long ? 4 : 2);
  constexpr std::size_t longest = 10'000;  // as numpy has it
  if (length > longest)
    throw std::runtime_error{"has a header of " + std::to_string(length) +
                             " bytes, expected at most " + std::to_string(longest)};
  if (length > bytes.size() - begin) throw std::runtime_error{"ends within its header"};
  const std::string header = bytes.substr(begin, length);

  const std::string type = field_of(header, "descr", "'([^']*)'");
  const auto kind = integers_of(type);
  if (!kind)
    throw std::runtime_error{"has elements of type '" + type +
                             "', expected integers of at most 64 bits, little-endian"};
  if (field_of(header, "fortran_order", "(True|False)") == "True")
    throw std::runtime_error{
        "has columns one after the other, expected rows (fortran_order False)"};
  // So few digits that the product fits.
  npy_table table;
  table.rows = std::stoull(field_of(header, "shape", R"(\((\d{1,9}), *\d{1,9}\))"));
  table.columns = std::stoull(field_of(header, "shape", R"(\(\d{1,9}, *(\d{1,9})\))"));
  const std::size_t count = table.rows * table.columns;
  const std::size_t there = (bytes.size() - begin - length) / kind->bytes;
  if (there != count)
    throw std::runtime_error{"has " + std::to_string(there) + " elements, expected " +
                             std::to_string(table.rows) + " x " + std::to_string(table.columns)};
  table.values.reserve(count);
  for (std::size_t i = 0; i < count; ++i)
    table.values.push_back(kind->at(&bytes[begin + length + i * kind->bytes]));
  return table;
}

}  // namespace bench
