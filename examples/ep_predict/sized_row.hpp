// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <type_traits>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/memory_map.hpp>

namespace ep_predict {

/// A codec whose rows have the sizes of any other codec and no content: a simulation takes the same
/// time whatever the bytes are, and one type for all codecs compiles faster than one for each.
class sized_row {
 public:
  ///@{
  /// A member of the concept `token_codec`, which states its contract.
  using element = std::byte;

  static constexpr std::string_view name = "sized_row";

  [[nodiscard]] static constexpr std::size_t row_bytes(std::size_t hidden) noexcept {
    return std::is_constant_evaluated() ? hidden : format.row_bytes;
  }
  [[nodiscard]] static constexpr std::size_t scale_bytes(std::size_t /*hidden*/) noexcept {
    return std::is_constant_evaluated() ? 0 : format.scale_bytes;
  }

  void encode(std::span<const peerbus::bf16>, std::span<std::byte>,
              std::span<std::byte>) const noexcept {}

  void decode(std::span<const std::byte>, std::span<const std::byte>,
              std::span<float> out) const noexcept {
    std::ranges::fill(out, 0.0F);
  }
  ///@}

  /// The sizes of all rows. Set it before ranks start.
  static inline peerbus::moe::row_format format{};
};

static_assert(peerbus::token_codec<sized_row>);

}  // namespace ep_predict
