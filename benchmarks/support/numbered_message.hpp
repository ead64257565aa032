// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

namespace bench {

/// Messages whose first and last word are their number; the words between are always the same.
class numbered_message {
 public:
  /// `bytes`: a multiple of 8, and not 0.
  explicit numbered_message(std::size_t bytes) : words_(bytes / sizeof(std::uint64_t)) {
    std::iota(words_.begin(), words_.end(), std::uint64_t{0x1234'5678'9abc'def0});
  }

  [[nodiscard]] std::span<const std::uint64_t> numbered(std::uint64_t number) noexcept {
    words_.front() = number;
    words_.back() = number;
    return words_;
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return words_.size() * sizeof(std::uint64_t); }

  /// Whether the message at `arrived` has this number, by its first and last word.
  [[nodiscard]] bool is(const std::byte* arrived, std::uint64_t number) const noexcept {
    std::array<std::uint64_t, 2> seen{};
    std::memcpy(&seen[0], arrived, sizeof seen[0]);
    std::memcpy(&seen[1], arrived + bytes() - sizeof seen[1], sizeof seen[1]);
    return seen[0] == number && seen[1] == number;
  }
  /// Whether every word of it is right.
  [[nodiscard]] bool is_all_of(const std::byte* arrived, std::uint64_t number) noexcept {
    return std::memcmp(arrived, numbered(number).data(), bytes()) == 0;
  }

 private:
  std::vector<std::uint64_t> words_;
};

}  // namespace bench
