// SPDX-License-Identifier: MIT
#include "support/bytes.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace test {

namespace {

std::byte byte_of(std::uint64_t number, std::size_t i) {
  return static_cast<std::byte>((i * 131 + i / 4096 + number) & 0xffU);
}

}  // namespace

void fill_pattern(std::span<std::byte> bytes, std::uint64_t number) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_of(number, i);
}

std::size_t bytes_of_pattern(std::span<const std::byte> bytes, std::uint64_t number) {
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != byte_of(number, i)) return i;
  return bytes.size();
}

}  // namespace test
