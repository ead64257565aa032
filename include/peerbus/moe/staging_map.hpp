// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include <peerbus/moe/config.hpp>

namespace peerbus::moe {

/// What of a row travels beside it, in numbers of bytes per row; what a row does not have is 0.
struct row_extras {
  std::size_t scales = 0;
  std::size_t origin = 0;
  std::size_t experts = 0;
  std::size_t weights = 0;
  std::array<std::size_t, max_attachments> attachments{};
};

/// Where a batch keeps what passes through registered memory, for peers whose memory cannot be
/// stored to: what leaves for the peers, and the outputs that come back. Offsets as in
/// `memory_map`.
///
/// Rows are kept once per token, however many copies go out. What is small beside them is packed:
/// written once per copy, in the order of destinations, so that the copies whose rows continue each
/// other at a peer need one put for all their scales, one for their origins, and so on.
struct staging_map {
  /// Up to so many bytes are packed. What is larger costs less as a put of its own per copy than
  /// as a copy of its bytes.
  static constexpr std::size_t most_packed = 256;
  [[nodiscard]] static constexpr bool packs(std::size_t bytes) noexcept {
    return bytes <= most_packed;
  }

  std::size_t begin = 0;
  // By token, [max_tokens].
  std::size_t rows = 0;
  std::size_t scales = 0;
  std::array<std::size_t, max_attachments> attachments{};  ///< those that are not packed
  // By copy, [max_tokens x copies], in the order of destinations.
  std::size_t packed_scales = 0;
  std::size_t packed_origins = 0;
  std::size_t packed_experts = 0;
  std::size_t packed_weights = 0;
  std::array<std::size_t, max_attachments> packed_attachments{};
  /// Outputs from other ranks, by slot: [max_tokens][copies][hidden] bf16.
  std::size_t returned = 0;

  /// Calls `visit(area, bytes)` for all areas in ascending order, for `tokens` tokens of `copies`
  /// copies each.
  template <class Self, class Visit>
  static constexpr void for_each_area(Self& self, std::size_t tokens, std::size_t copies,
                                      std::size_t row_bytes, const row_extras& beside,
                                      std::size_t output_bytes, Visit&& visit) noexcept {
    const std::size_t slots = tokens * copies;
    const auto packed = [&](std::size_t bytes) { return packs(bytes) ? slots * bytes : 0; };
    visit(self.rows, tokens * row_bytes);
    visit(self.scales, tokens * beside.scales);
    for (std::size_t a = 0; a < max_attachments; ++a)
      visit(self.attachments[a], packs(beside.attachments[a]) ? 0 : tokens * beside.attachments[a]);
    visit(self.packed_scales, packed(beside.scales));
    visit(self.packed_origins, slots * beside.origin);
    visit(self.packed_experts, slots * beside.experts);
    visit(self.packed_weights, slots * beside.weights);
    for (std::size_t a = 0; a < max_attachments; ++a)
      visit(self.packed_attachments[a], packed(beside.attachments[a]));
    visit(self.returned, slots * output_bytes);
  }
};

}  // namespace peerbus::moe
