// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string_view>

namespace peerbus::detail {

/// A hash of numbers in their order: 64-bit FNV-1a. If the numbers are the bytes of a text, it is
/// the hash of that text. Larger numbers are mixed in as a whole. Equal on all machines.
class fnv_hash {
 public:
  constexpr void add(std::uint64_t number) noexcept { value_ = (value_ ^ number) * 0x100000001b3U; }
  constexpr void add_text(std::string_view text) noexcept {
    for (const char letter : text) add(static_cast<unsigned char>(letter));
  }
  [[nodiscard]] constexpr std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

}  // namespace peerbus::detail
