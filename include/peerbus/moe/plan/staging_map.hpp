// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include <peerbus/moe/config.hpp>

namespace peerbus::moe {

/// The bytes per row of each kind of data that travels beside a row. 0: the row has no such data.
struct row_extras {
  std::size_t scales = 0;   ///< the codec's `scale_bytes`
  std::size_t origin = 0;   ///< a `wire_origin`
  std::size_t experts = 0;  ///< local expert ids, layouts by rank only
  std::size_t weights = 0;  ///< weights of these experts, layouts by rank only
  std::array<std::size_t, max_attachments> attachments{};  ///< 0 where none is configured
};

/// The offsets of the data of a batch that passes through registered memory, because the memory of
/// some peers cannot be stored to: the data that leaves for these peers, and the outputs that come
/// back from them. Offsets are as in `memory_map`.
///
/// A row is staged once per token, regardless of the number of its copies. Small data beside the
/// rows is packed: it is written once per copy, in the order of destinations. Copies that are
/// consecutive rows at a peer then need one put for all their scales, one for all their origins,
/// and so on.
struct staging_map {
  /// The largest number of bytes per row that is packed. For larger data, a separate put per copy
  /// costs less than copying the bytes.
  static constexpr std::size_t most_packed = 256;
  /// Returns whether data of `bytes` bytes per row is packed.
  [[nodiscard]] static constexpr bool packs(std::size_t bytes) noexcept {
    return bytes <= most_packed;
  }

  std::size_t begin = 0;  ///< start of the first area
  // Areas with an entry per token: [max_tokens].
  std::size_t rows = 0;                                    ///< [row_bytes]
  std::size_t scales = 0;                                  ///< [scale_bytes]
  std::array<std::size_t, max_attachments> attachments{};  ///< attachments that are not packed
  // Areas with an entry per copy, in the order of destinations: [max_tokens x copies].
  std::size_t packed_scales = 0;   ///< [scale_bytes], if they are packed
  std::size_t packed_origins = 0;  ///< a `wire_origin`
  std::size_t packed_experts = 0;  ///< [top_k] int32, layouts by rank only
  std::size_t packed_weights = 0;  ///< [top_k] float, layouts by rank only
  std::array<std::size_t, max_attachments> packed_attachments{};  ///< attachments that are packed
  // The outputs from other ranks, by slot: [max_tokens][copies].
  std::size_t returned = 0;  ///< [hidden] bf16, or f32 for sums in f32

  /// Calls `visit(area, bytes)` for each area of `self` in ascending order. `area` is the member
  /// with its offset, and `bytes` its size for `tokens` tokens of `copies` copies each.
  template <class Self, class Visit>
  static constexpr void for_each_area(Self& self, std::size_t tokens, std::size_t copies,
                                      std::size_t row_bytes, const row_extras& extras,
                                      std::size_t output_bytes, Visit&& visit) noexcept {
    const std::size_t slots = tokens * copies;
    const auto packed = [&](std::size_t bytes) { return packs(bytes) ? slots * bytes : 0; };
    visit(self.rows, tokens * row_bytes);
    visit(self.scales, tokens * extras.scales);
    for (std::size_t a = 0; a < max_attachments; ++a)
      visit(self.attachments[a], packs(extras.attachments[a]) ? 0 : tokens * extras.attachments[a]);
    visit(self.packed_scales, packed(extras.scales));
    visit(self.packed_origins, slots * extras.origin);
    visit(self.packed_experts, slots * extras.experts);
    visit(self.packed_weights, slots * extras.weights);
    for (std::size_t a = 0; a < max_attachments; ++a)
      visit(self.packed_attachments[a], packed(extras.attachments[a]));
    visit(self.returned, slots * output_bytes);
  }
};

}  // namespace peerbus::moe
