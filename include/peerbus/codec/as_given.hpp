// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/fp8.hpp>

namespace peerbus::codec {

/// Tokens that the caller has quantised to E4M3: rows are their codes, unchanged. Whatever scales
/// belong to them travel as an attachment; `decode` knows none and gives the values of the codes.
class fp8_e4m3_as_given {
 public:
  using token = fp8_e4m3;
  using element = fp8_e4m3;

  static constexpr std::string_view name = "fp8_e4m3_as_given";
  static constexpr bool verbatim = true;

  [[nodiscard]] static constexpr std::size_t row_bytes(std::size_t hidden) noexcept {
    return hidden;
  }
  [[nodiscard]] static constexpr std::size_t scale_bytes(std::size_t) noexcept { return 0; }

  void encode(std::span<const token> codes, std::span<std::byte> row,
              std::span<std::byte>) const noexcept {
    // memcpy takes no null pointer, which an empty span may hold.
    if (!codes.empty()) std::memcpy(row.data(), codes.data(), codes.size_bytes());
  }

  void decode(std::span<const std::byte> row, std::span<const std::byte>,
              std::span<float> out) const noexcept {
    for (std::size_t i = 0; i < out.size(); ++i) {
      element code;
      std::memcpy(&code, row.data() + i, sizeof code);
      out[i] = static_cast<float>(code);
    }
  }
};

static_assert(verbatim_codec<fp8_e4m3_as_given>);

}  // namespace peerbus::codec
