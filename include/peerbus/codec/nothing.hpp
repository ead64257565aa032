// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/bf16.hpp>

namespace peerbus::codec {

/// A codec whose rows have no bytes, for dispatches that only prepare a combine. Only the data
/// beside a row arrives: the identity of its token, its experts and its attachments. `encode` does
/// not read the tokens, of which it needs only the number of elements. Rows decode to zeros.
class nothing {
 public:
  ///@{
  /// Implements the concept `token_codec`, which states the contract of each member.
  using element = std::byte;

  static constexpr std::string_view name = "nothing";

  [[nodiscard]] static constexpr std::size_t row_bytes(std::size_t) noexcept { return 0; }
  [[nodiscard]] static constexpr std::size_t scale_bytes(std::size_t) noexcept { return 0; }

  void encode(std::span<const ::peerbus::bf16>, std::span<std::byte>,
              std::span<std::byte>) const noexcept {}

  void decode(std::span<const std::byte>, std::span<const std::byte>,
              std::span<float> out) const noexcept {
    std::fill(out.begin(), out.end(), 0.0F);
  }
  ///@}
};

static_assert(token_codec<nothing>);

}  // namespace peerbus::codec
