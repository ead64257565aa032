// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/copy.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/kernel/kernel_set.hpp>

/// The codecs of the library. The concept `token_codec` states what they have in common.
namespace peerbus::codec {

/// A codec that sends the bytes of the token unchanged: 2 * hidden bytes, without scales, exact in
/// both directions.
/// Cost: `encode` copies the row once.
class bf16 {
 public:
  ///@{
  /// Implements the concepts `token_codec` and `verbatim_codec`, which state the contract of each
  /// member.
  using element = ::peerbus::bf16;

  static constexpr std::string_view name = "bf16";
  static constexpr bool verbatim = true;

  [[nodiscard]] static constexpr std::size_t row_bytes(std::size_t hidden) noexcept {
    return hidden * sizeof(element);
  }
  [[nodiscard]] static constexpr std::size_t scale_bytes(std::size_t) noexcept { return 0; }

  bf16() noexcept = default;

  /// Makes a codec that uses `kernels` instead of the fastest ones. `kernels` must outlive the
  /// codec and its copies.
  explicit bf16(const kernel::kernel_set& kernels) noexcept : kernels_{&kernels} {}

  void encode(std::span<const element> token, std::span<std::byte> row,
              std::span<std::byte>) const noexcept {
    const auto bytes = std::as_bytes(token);
    peerbus::detail::copy_bytes(row.data(), bytes.data(), bytes.size());
  }

  void decode(std::span<const std::byte> row, std::span<const std::byte>,
              std::span<float> out) const noexcept {
    kernels_->widen(peerbus::detail::placed<element>(row.data()), out.size(), out.data());
  }
  ///@}

 private:
  const kernel::kernel_set* kernels_ = &kernel::best();
};

static_assert(verbatim_codec<bf16>);

}  // namespace peerbus::codec
