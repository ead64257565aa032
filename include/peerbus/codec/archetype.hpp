// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/bf16.hpp>

namespace peerbus::codec {

/// A codec that satisfies `token_codec` and has nothing more. Code that compiles with it requires
/// no more of a codec than the concept states. It has no default constructor, assignment or
/// comparison; use `make()`.
///
/// Its row is the token itself, and its only scale is the number of elements of the token.
class archetype {
 public:
  /// An element of a row. The concept only requires that bytes can be copied to and from it.
  class element {
   public:
    element() = delete;

   protected:
    std::byte bytes[2];  ///< the bits of a bf16
  };

  ///@{
  /// Implements the concept `token_codec`, which states the contract of each member.
  static constexpr std::string_view name = "archetype";

  [[nodiscard]] static constexpr std::size_t row_bytes(std::size_t hidden) noexcept {
    return hidden * sizeof(::peerbus::bf16);
  }
  [[nodiscard]] static constexpr std::size_t scale_bytes(std::size_t) noexcept { return 4; }

  /// Returns a codec. It replaces the default constructor, which the concept does not require.
  [[nodiscard]] static archetype make() noexcept { return archetype{0}; }

  archetype(const archetype&) noexcept = default;
  archetype& operator=(const archetype&) = delete;
  ~archetype() = default;

  void encode(std::span<const ::peerbus::bf16> token, std::span<std::byte> row,
              std::span<std::byte> scales) const noexcept {
    std::memcpy(row.data(), token.data(), row.size());
    const auto count = static_cast<float>(token.size());
    std::memcpy(scales.data(), &count, sizeof(count));
  }

  void decode(std::span<const std::byte> row, std::span<const std::byte>,
              std::span<float> out) const noexcept {
    for (std::size_t i = 0; i < out.size(); ++i) {
      ::peerbus::bf16 value;
      std::memcpy(&value, row.data() + i * sizeof(value), sizeof(value));
      out[i] = static_cast<float>(value);
    }
  }
  ///@}

 private:
  explicit archetype(int) noexcept {}
};

static_assert(token_codec<archetype> && !verbatim_codec<archetype>);

}  // namespace peerbus::codec
