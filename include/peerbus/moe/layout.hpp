// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <peerbus/core/align.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>

namespace peerbus::moe {

/// What a layout decides, in numbers. A block is the rows of one destination, which lie together,
/// ordered by source rank, then by token: an expert's rows, or, rank-major, all rows of a rank.
struct block_geometry {
  expert_placement blocks;       ///< which rank holds which blocks
  std::size_t copies_per_token;  ///< the most rows that one token becomes
  std::size_t row_capacity;      ///< rows that one rank has room for
  std::size_t block_rows = 0;    ///< rows from the start of a block to the next; 0: as many as come
  std::size_t alignment = 1;     ///< blocks without fixed size start at multiples of this
  bool zero_gaps = false;        ///< whether rows behind those that came are zeroed
  bool by_rank = false;          ///< blocks are ranks, not experts

  /// Where the block that begins at row `begin` with `rows` rows gives way to the next.
  [[nodiscard]] constexpr std::uint32_t next_block(std::uint32_t begin,
                                                   std::uint32_t rows) const noexcept {
    if (block_rows != 0) return begin + static_cast<std::uint32_t>(block_rows);
    const std::uint32_t end = begin + rows;
    if (alignment == 1) return end;  // Spares a division per block.
    return static_cast<std::uint32_t>(align_up(end, alignment));
  }
};

/// Expert-major, compact: one row per (token, expert), grouped by expert without gaps, or each
/// expert's rows starting at a multiple of `alignment` rows, as grouped GEMMs want them. Combine
/// weighs at the home rank.
struct compact {
  static constexpr std::string_view name = "compact";
  std::size_t alignment = 1;  ///< in rows, at least 1
  bool zero_gaps = false;     ///< whether dispatch zeroes rows, scales and attachments between

  [[nodiscard]] constexpr block_geometry geometry(const exchange_config& config,
                                                  std::size_t ranks) const noexcept {
    const expert_placement experts{config.experts, ranks};
    const std::size_t rows = ranks * config.max_tokens * std::min(config.top_k, experts.most());
    return {.blocks = experts,
            .copies_per_token = config.top_k,
            .row_capacity = rows + experts.most() * (alignment - 1),
            .alignment = alignment,
            .zero_gaps = zero_gaps};
  }
};

/// Expert-major, padded: [local experts, ranks x max_tokens, hidden], each expert's rows from the
/// start of its part, their number beside it, as a masked grouped GEMM wants them. Rows behind the
/// last are left as they were. Combine weighs at the home rank.
struct padded {
  static constexpr std::string_view name = "padded";

  [[nodiscard]] constexpr block_geometry geometry(const exchange_config& config,
                                                  std::size_t ranks) const noexcept {
    const expert_placement experts{config.experts, ranks};
    return {.blocks = experts,
            .copies_per_token = config.top_k,
            .row_capacity = experts.most() * ranks * config.max_tokens,
            .block_rows = ranks * config.max_tokens};
  }
};

/// Rank-major: one row per (token, rank), however many of the token's experts live there, ordered
/// by source rank, then by token; with each row the token's slots, as local expert ids and weights,
/// and an index of the rows by expert. The rank weighs and sums what its experts make of a row;
/// combine adds the ranks' sums, unweighted, in order of ranks.
struct rank_major {
  static constexpr std::string_view name = "rank_major";

  [[nodiscard]] constexpr block_geometry geometry(const exchange_config& config,
                                                  std::size_t ranks) const noexcept {
    return {.blocks = expert_placement{ranks, ranks},
            .copies_per_token = std::min(config.top_k, ranks),
            .row_capacity = ranks * config.max_tokens,
            .by_rank = true};
  }
};

template <class L>
concept row_layout =
    std::same_as<L, compact> || std::same_as<L, padded> || std::same_as<L, rank_major>;

}  // namespace peerbus::moe
