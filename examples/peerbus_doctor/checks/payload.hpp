// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace peerbus_doctor {

/// Returns word `index` of payload `number`. Words differ between payloads and between places.
inline std::uint64_t payload_word(std::uint64_t number, std::uint64_t index) {
  return (number + index) * 0x9e37'79b9'7f4a'7c15U;
}

/// Fills `bytes`, a whole number of 8-byte words, with payload `number`.
inline void write_payload(std::span<std::byte> bytes, std::uint64_t number) {
  for (std::size_t i = 0; i < bytes.size() / sizeof number; ++i) {
    const std::uint64_t word = payload_word(number, i);
    std::memcpy(&bytes[i * sizeof word], &word, sizeof word);
  }
}

/// Returns whether `bytes` are payload `number`.
inline bool is_payload(std::span<const std::byte> bytes, std::uint64_t number) {
  for (std::size_t i = 0; i < bytes.size() / sizeof number; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, &bytes[i * sizeof word], sizeof word);
    if (word != payload_word(number, i)) return false;
  }
  return true;
}

}  // namespace peerbus_doctor
