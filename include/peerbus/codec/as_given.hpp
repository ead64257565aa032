// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/copy.hpp>
#include <peerbus/core/fp8.hpp>

namespace peerbus::codec {

/// A codec for tokens that the caller has already quantised to E4M3: a row holds their codes
/// unchanged. If scales belong to the tokens, they travel as an attachment. `decode` does not know
/// them and returns the values of the codes.
/// Cost: `encode` copies the row once.
class fp8_e4m3_as_given {
 public:
  ///@{
  /// Implements the concepts `token_codec` and `verbatim_codec`, which state the contract of each
  /// member.
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
    const auto bytes = std::as_bytes(codes);
    peerbus::detail::copy_bytes(row.data(), bytes.data(), bytes.size());
  }

  void decode(std::span<const std::byte> row, std::span<const std::byte>,
              std::span<float> out) const noexcept {
    for (std::size_t i = 0; i < out.size(); ++i) {
      element code;
      std::memcpy(&code, row.data() + i, sizeof code);
      out[i] = static_cast<float>(code);
    }
  }
  ///@}
};

static_assert(verbatim_codec<fp8_e4m3_as_given>);

}  // namespace peerbus::codec
