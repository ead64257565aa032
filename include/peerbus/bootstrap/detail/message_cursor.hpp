// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail {

/// A position in a message at which numbers and bytes are read or written in order. Numbers have
/// the most significant byte first. The caller makes sure that the message is long enough.
template <class Byte>
class message_cursor {
 public:
  constexpr explicit message_cursor(std::span<Byte> message) noexcept : rest_{message} {}

  constexpr void put(std::uint32_t value) noexcept {
    for (unsigned shift = 32; shift != 0; shift -= 8)
      rest_[(32 - shift) / 8] = static_cast<std::byte>(value >> (shift - 8));
    rest_ = rest_.subspan(4);
  }
  constexpr void put(std::span<const std::byte> bytes) noexcept {
    std::copy(bytes.begin(), bytes.end(), rest_.begin());
    rest_ = rest_.subspan(bytes.size());
  }
  [[nodiscard]] constexpr std::uint32_t get() noexcept {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; ++i)
      value = value << 8 | std::to_integer<std::uint32_t>(rest_[i]);
    rest_ = rest_.subspan(4);
    return value;
  }
  constexpr void get(std::span<std::byte> bytes) noexcept {
    std::copy_n(rest_.begin(), bytes.size(), bytes.begin());
    rest_ = rest_.subspan(bytes.size());
  }

 private:
  std::span<Byte> rest_;
};

}  // namespace peerbus::detail
