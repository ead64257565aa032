// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include <peerbus/moe/plan/home_order.hpp>

namespace peerbus::moe {

PEERBUS_INLINE home_order::home_order(const exchange_config& config, const block_geometry& geometry,
                                      std::size_t rank_count)
    : copies_{geometry.copies_per_token} {
  begins_.resize(config.max_tokens * copies_ + 1);
  ranks_.resize(rank_count + 1);
  // Not initialised, so that pages are committed only as rows arrive.
  by_slot_ = std::make_unique_for_overwrite<std::uint32_t[]>(geometry.row_capacity);
  rows_ = std::make_unique_for_overwrite<std::uint32_t[]>(geometry.row_capacity);
}

PEERBUS_INLINE void home_order::sort(const recv_plan& arriving,
                                     std::span<const std::uint8_t> wanted,
                                     const wire_origin* origins) noexcept {
  const auto for_each_row = [&](auto&& visit) {
    for (std::size_t b = 0; b < arriving.blocks(); ++b) {
      for (const rank_id source : all_ranks{arriving.ranks()}) {
        if (wanted[source.index()] == 0) continue;
        const auto rows = arriving.from(b, source);
        for (std::uint32_t row = rows[0]; row < rows[1]; ++row) visit(row);
      }
    }
  };
  // Origins come from peers. They are limited, so that a bad origin does not lead beyond these
  // arrays.
  const std::size_t last_slot = begins_.size() - 2;
  const auto home_of = [&](std::uint32_t row) {
    return std::min<std::size_t>(origins[row].rank, ranks_.size() - 2);
  };
  const auto slot_of = [&](std::uint32_t row) {
    const wire_origin& origin = origins[row];
    return std::min(origin.token * copies_ + origin.slot, last_slot);
  };
  // Two counting sorts: first by slot, then by home rank, which keeps the order of slots.
  std::size_t used = 0;
  std::fill(ranks_.begin(), ranks_.end(), 0U);
  for_each_row([&](std::uint32_t row) {
    used = std::max(used, slot_of(row) + 1);
    ++ranks_[home_of(row) + 1];
  });
  std::fill_n(begins_.begin(), used + 1, 0U);
  for_each_row([&](std::uint32_t row) { ++begins_[slot_of(row) + 1]; });
  for (std::size_t slot = 0; slot < used; ++slot) begins_[slot + 1] += begins_[slot];
  count_ = begins_[used];
  for_each_row([&](std::uint32_t row) { by_slot_[begins_[slot_of(row)]++] = row; });
  for (std::size_t r = 0; r + 1 < ranks_.size(); ++r) ranks_[r + 1] += ranks_[r];
  for (std::size_t i = 0; i < count_; ++i) rows_[ranks_[home_of(by_slot_[i])]++] = by_slot_[i];
  // Each entry is now the beginning of the next rank's part. Moves it to that rank.
  std::rotate(ranks_.begin(), ranks_.end() - 1, ranks_.end());
  ranks_[0] = 0;
}

}  // namespace peerbus::moe
