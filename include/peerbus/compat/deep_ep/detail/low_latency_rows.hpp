// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/rank.hpp>

namespace peerbus::deep_ep::detail {

/// Fills `layout_range` of one expert from its rows: for each source rank, its first row times 2^32
/// plus the number of its rows. The rows of one source rank must lie together. `in_order` states
/// that the rows lie in the order of the source ranks, as they do without relay.
template <class Rows>
void write_layout_range(const Rows& rows, bool in_order, std::span<std::int64_t> ranges) noexcept {
  if (in_order) {
    std::int64_t begin = 0;
    for (const rank_id source : all_ranks{ranges.size()}) {
      const auto source_rows = static_cast<std::int64_t>(rows.count_from(source));
      ranges[source.index()] = begin << 32 | source_rows;
      begin += source_rows;
    }
    return;
  }
  std::ranges::fill(ranges, 0);
  for (std::size_t i = 0; i < rows.count(); ++i) {
    std::int64_t& range = ranges[rows.origin(i).rank.index()];
    if (range == 0) range = static_cast<std::int64_t>(i) << 32;
    ++range;
  }
}

/// Fills the weight and the source rank of each row of one expert. The first attachment of a row
/// must be the weights of its token, [top_k].
template <class Rows>
void write_weights(const Rows& rows, std::size_t top_k, float* weights,
                   std::int32_t* source_ranks) noexcept {
  const std::span<const float> slots = rows.template attachment<float>(0);
  for (std::size_t i = 0; i < rows.count(); ++i) {
    const auto origin = rows.origin(i);
    weights[i] = slots[i * top_k + origin.slot];
    source_ranks[i] = static_cast<std::int32_t>(origin.rank.index());
  }
}

}  // namespace peerbus::deep_ep::detail
