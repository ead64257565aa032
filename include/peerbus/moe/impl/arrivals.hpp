// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/arrivals.hpp>
#include <peerbus/moe/count_table.hpp>
#include <peerbus/moe/layout.hpp>

namespace peerbus::moe {

PEERBUS_INLINE arrivals::arrivals(const block_geometry& geometry, rank_id rank, std::size_t ranks)
    : geometry_{geometry},
      rank_{rank},
      ranks_{ranks},
      starts_(geometry.blocks.count(rank) * (ranks + 1) + 1) {}

template <class Count>
void arrivals::place_as(const count_table& counts) noexcept {
  // The members are copied to locals, because counts of one byte may alias the members. The
  // compiler would then read the members again for every block.
  const block_geometry geometry = geometry_;
  const std::size_t local = geometry.blocks.count(rank_);
  const std::byte* const first_count =
      counts.first + geometry.blocks.first(rank_) * sizeof(Count);  // of rank 0
  const std::size_t ranks = ranks_;
  std::uint32_t* next = starts_.data();
  std::size_t arrived = 0;
  std::uint32_t begin = 0;
  for (std::size_t b = 0; b < local; ++b) {
    std::uint32_t row = begin;
    const std::byte* source_count = first_count + b * sizeof(Count);
    for (std::size_t source = 0; source < ranks; ++source, source_count += counts.stride) {
      *next++ = row;
      row += *reinterpret_cast<const Count*>(source_count);
    }
    *next++ = row;
    arrived += row - begin;
    begin = geometry.next_block(begin, row - begin);
  }
  *next = begin;
  rows_ = arrived;
  end_ = begin;
}

PEERBUS_INLINE void arrivals::place(const count_table& counts) noexcept {
  with_count_type(counts.count_bytes, [&]<class Count>(std::type_identity<Count>) noexcept {
    this->place_as<Count>(counts);
  });
}

}  // namespace peerbus::moe
