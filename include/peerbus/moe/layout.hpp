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

/// The properties of a layout in numbers. A block is the rows of one destination: of an expert, or,
/// in layouts by rank, of a rank. The rows of a block are ordered by source rank, then by token.
/// They lie together, or, in layouts with slots, at fixed places for each source rank.
struct block_geometry {
  expert_placement blocks;       ///< the rank that holds each block
  std::size_t copies_per_token;  ///< the most rows that one token becomes
  std::size_t row_capacity;      ///< rows that one rank has room for
  std::size_t block_rows = 0;    ///< rows from a block to the next; 0: as many as arrive
  std::size_t source_rows = 0;   ///< slots of a source rank in a block; 0: rows lie together
  std::size_t alignment = 1;     ///< blocks without fixed size start at multiples of this
  bool zero_gaps = false;        ///< true: dispatch zeroes gaps between blocks
  bool by_rank = false;          ///< true: blocks are ranks; false: blocks are experts
  bool by_source = false;        ///< true: counts of rows are kept for each source rank

  /// Returns whether every source rank has slots of its own in every block.
  [[nodiscard]] constexpr bool has_slots() const noexcept { return source_rows != 0; }
  /// Sets the size of blocks that have a fixed size and no slots to `ranks` x `tokens` rows.
  constexpr void bound(std::size_t tokens, std::size_t ranks) noexcept {
    if (block_rows != 0 && !has_slots()) block_rows = ranks * tokens;
  }
  /// Returns the row of the first slot of `source` in block `local_block` of a rank.
  [[nodiscard]] constexpr std::uint32_t first_slot(std::size_t local_block,
                                                   rank_id source) const noexcept {
    return static_cast<std::uint32_t>(local_block * block_rows + source.index() * source_rows);
  }
  /// Returns the first row of the block that follows a block of `rows` rows at row `begin`.
  [[nodiscard]] constexpr std::uint32_t next_block(std::uint32_t begin,
                                                   std::uint32_t rows) const noexcept {
    if (block_rows != 0) return begin + static_cast<std::uint32_t>(block_rows);
    const std::uint32_t end = begin + rows;
    if (alignment == 1) return end;  // Saves a division per block.
    return static_cast<std::uint32_t>(align_up(end, alignment));
  }
};

/// The expert-major layout without padding: one row per (token, expert), grouped by expert. Without
/// `alignment` there are no gaps. With it, the rows of each expert start at a multiple of
/// `alignment` rows, as some grouped GEMMs require. Combine applies the weights at the home rank.
struct compact {
  /// The name that errors and reports use.
  static constexpr std::string_view name = "compact";
  std::size_t alignment = 1;  ///< number of rows, at least 1
  bool zero_gaps = false;     ///< true: dispatch zeroes rows, scales and attachments in gaps

  /// Returns the layout in numbers. `config` is valid for this layout.
  [[nodiscard]] constexpr block_geometry geometry(const exchange_config& config,
                                                  std::size_t ranks) const noexcept {
    const expert_placement experts = placement_of(config, ranks);
    const std::size_t rows = ranks * config.max_tokens * std::min(config.top_k, experts.most());
    const std::size_t unit = std::max<std::size_t>(alignment, 1);  // 0 is refused later.
    return {.blocks = experts,
            .copies_per_token = config.top_k,
            .row_capacity = align_up(rows + experts.most() * (unit - 1), unit),
            .alignment = alignment,
            .zero_gaps = zero_gaps};
  }
};

/// The expert-major layout of fixed shape [local experts, ranks x max_tokens, hidden]. The rows of
/// each expert lie at the start of its part, and their number is separate, as a masked grouped GEMM
/// expects. Dispatch does not write the unused rows. Combine applies the weights at the home rank.
struct padded {
  /// The name that errors and reports use.
  static constexpr std::string_view name = "padded";

  /// Returns the layout in numbers. `config` is valid for this layout.
  [[nodiscard]] constexpr block_geometry geometry(const exchange_config& config,
                                                  std::size_t ranks) const noexcept {
    const expert_placement experts = placement_of(config, ranks);
    return {.blocks = experts,
            .copies_per_token = config.top_k,
            .row_capacity = experts.most() * ranks * config.max_tokens,
            .block_rows = ranks * config.max_tokens};
  }
};

/// The rank-major layout: one row per (token, rank), even if the rank holds several experts of the
/// token. Rows are ordered by source rank, then by token. Each row comes with the slots of its
/// token as local expert ids and weights, and there is an index of the rows by expert. The
/// receiving rank applies the weights and sums the outputs of its experts for each row. Combine
/// adds these sums without weights, in the order of ranks.
struct rank_major {
  /// The name that errors and reports use.
  static constexpr std::string_view name = "rank_major";

  /// Returns the layout in numbers. `config` is valid for this layout.
  [[nodiscard]] constexpr block_geometry geometry(const exchange_config& config,
                                                  std::size_t ranks) const noexcept {
    return {.blocks = expert_placement{ranks, ranks},
            .copies_per_token = std::min(config.top_k, ranks),
            .row_capacity = ranks * config.max_tokens,
            .by_rank = true};
  }
};

/// The rank-major layout with slots: [ranks, max_tokens, hidden]. Every source rank has max_tokens
/// slots of its own, and its rows lie at their start, in the order of tokens. Rows leave as soon as
/// `dispatch_send` is called, because their places do not depend on other ranks; in the layouts
/// above they leave when the counts of all ranks are known. Otherwise it equals `rank_major`.
///
/// `combine_send` gives up the rows of a batch. If a batch is not combined, the dispatch that uses
/// its memory next first waits until all ranks have called that dispatch.
struct slots {
  /// The name that errors and reports use.
  static constexpr std::string_view name = "slots";

  /// Returns the layout in numbers. `config` is valid for this layout.
  [[nodiscard]] constexpr block_geometry geometry(const exchange_config& config,
                                                  std::size_t ranks) const noexcept {
    block_geometry by_rank = rank_major{}.geometry(config, ranks);
    by_rank.block_rows = by_rank.row_capacity;
    by_rank.source_rows = config.max_tokens;
    by_rank.by_source = true;
    return by_rank;
  }
};

/// The expert-major layout with slots: [local experts, ranks, max_tokens, hidden], for a grouped
/// GEMM that takes a count for each pair of an expert and a source rank. It takes as much memory as
/// `padded`. Rows leave and are given up as in `slots`. Combine applies the weights at the home
/// rank.
struct expert_slots {
  /// The name that errors and reports use.
  static constexpr std::string_view name = "expert_slots";

  /// Returns the layout in numbers. `config` is valid for this layout.
  [[nodiscard]] constexpr block_geometry geometry(const exchange_config& config,
                                                  std::size_t ranks) const noexcept {
    block_geometry by_expert = padded{}.geometry(config, ranks);
    by_expert.source_rows = config.max_tokens;
    by_expert.by_source = true;
    return by_expert;
  }
};

/// The expert-major layout in which the rows of an expert from one source rank lie together, and
/// nothing else is promised about their places. So the exchange can use either protocol: with
/// `counts_first` rows lie as in `compact`, with `one_phase` as in `expert_slots`. The constructor
/// chooses the cheaper one, unless `exchange_config::protocol` names one.
///
/// Programs follow the rules of `expert_slots`: `combine_send` gives up the rows of a batch.
struct automatic {
  /// The name that errors and reports use.
  static constexpr std::string_view name = "automatic";

  /// Returns the layout in numbers, with slots unless `config.protocol` is `counts_first`.
  [[nodiscard]] constexpr block_geometry geometry(const exchange_config& config,
                                                  std::size_t ranks) const noexcept {
    if (config.protocol != dispatch_protocol::counts_first)
      return expert_slots{}.geometry(config, ranks);
    block_geometry together = compact{}.geometry(config, ranks);
    together.by_source = true;
    return together;
  }
};

/// The rank-major layout in which the rows of one source rank lie together. The exchange chooses
/// between `rank_major` and `slots` as for `automatic`. Programs follow the rules of `slots`.
struct automatic_by_rank {
  /// The name that errors and reports use.
  static constexpr std::string_view name = "automatic_by_rank";

  /// Returns the layout in numbers, with slots unless `config.protocol` is `counts_first`.
  [[nodiscard]] constexpr block_geometry geometry(const exchange_config& config,
                                                  std::size_t ranks) const noexcept {
    if (config.protocol != dispatch_protocol::counts_first) return slots{}.geometry(config, ranks);
    block_geometry together = rank_major{}.geometry(config, ranks);
    together.by_source = true;
    return together;
  }
};

/// A layout in which every source rank has slots of its own: `slots` or `expert_slots`.
template <class L>
concept slot_layout = std::same_as<L, slots> || std::same_as<L, expert_slots>;

/// A layout that can have either protocol: `automatic` or `automatic_by_rank`.
template <class L>
concept automatic_layout = std::same_as<L, automatic> || std::same_as<L, automatic_by_rank>;

/// A layout with one row for each pair of a token and a rank: `rank_major`, `slots` or
/// `automatic_by_rank`.
template <class L>
concept layout_by_rank =
    std::same_as<L, rank_major> || std::same_as<L, slots> || std::same_as<L, automatic_by_rank>;

/// A layout of the rows that a rank receives.
template <class L>
concept row_layout = std::same_as<L, compact> || std::same_as<L, padded> || layout_by_rank<L> ||
                     slot_layout<L> || automatic_layout<L>;

}  // namespace peerbus::moe
