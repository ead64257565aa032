// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include <peerbus/core/placed.hpp>
#include <peerbus/moe/plan/recv_plan.hpp>

namespace peerbus::moe {

PEERBUS_INLINE recv_plan::recv_plan(const block_geometry& geometry, rank_id rank, std::size_t ranks)
    : geometry_{geometry},
      rank_{rank},
      ranks_{ranks},
      starts_((geometry.has_slots() ? geometry.blocks.count(rank) * ranks * 2
                                    : geometry.blocks.count(rank) * (ranks + 1) + 1) +
              (geometry.by_source ? 2 : 0)),
      counts_(geometry.by_source ? geometry.blocks.count(rank) * ranks : 0) {
  if (!geometry.has_slots()) return;
  end_ = geometry.first_slot(blocks(), rank_id{0});
  for (std::size_t b = 0; b < blocks(); ++b)
    for (const rank_id source : all_ranks{ranks})
      starts_[2 * (b * ranks + source.index())] = geometry.first_slot(b, source);
  starts_.back() = end_;
}

template <class Count>
void recv_plan::place_as(const count_table& counts) noexcept {
  // The members are copied to locals, because counts of one byte may alias the members. The
  // compiler would then read the members again for every block.
  const block_geometry geometry = geometry_;
  const std::size_t local = geometry.blocks.count(rank_);
  const std::byte* const first_count =
      counts.first +
      (geometry.blocks.first(rank_) - counts.first_block) * sizeof(Count);  // of rank 0
  if (geometry.has_slots()) return count_slots<Count>(first_count, counts.stride);
  const std::size_t ranks = ranks_;
  std::uint32_t* next = starts_.data();
  std::size_t arrived = 0;
  std::uint32_t begin = 0;
  for (std::size_t b = 0; b < local; ++b) {
    std::uint32_t row = begin;
    const std::byte* source_count = first_count + b * sizeof(Count);
    for (std::size_t source = 0; source < ranks; ++source, source_count += counts.stride) {
      *next++ = row;
      row += *peerbus::detail::placed<Count>(source_count);
    }
    *next++ = row;
    arrived += row - begin;
    begin = geometry.next_block(begin, row - begin);
  }
  *next = begin;
  rows_ = arrived;
  end_ = begin;
  if (!geometry.by_source) return;
  starts_.back() = begin;
  for (std::size_t b = 0; b < local; ++b) {
    const std::uint32_t* const first = &starts_[b * (ranks + 1)];
    for (std::size_t source = 0; source < ranks; ++source)
      counts_[b * ranks + source] = first[source + 1] - first[source];
  }
}

template <class Count>
void recv_plan::count_slots(const std::byte* first_count, std::size_t stride) noexcept {
  // The members are copied to locals, as in `place_as`.
  const std::size_t ranks = ranks_;
  const std::size_t local = blocks();
  std::size_t arrived = 0;
  for (std::size_t source = 0; source < ranks && local != 0; ++source) {
    const auto* const source_counts = peerbus::detail::placed<Count>(first_count + source * stride);
    std::uint32_t* const counts = counts_.data() + source;
    std::uint32_t* const bounds = starts_.data() + 2 * source;
    for (std::size_t b = 0; b < local; ++b) {
      const std::uint32_t count = source_counts[b];
      counts[b * ranks] = count;
      bounds[2 * b * ranks + 1] = bounds[2 * b * ranks] + count;
      arrived += count;
    }
  }
  rows_ = arrived;
}

PEERBUS_INLINE void recv_plan::place(const count_table& counts) noexcept {
  with_count_type(counts.count_bytes, [&]<class Count>(std::type_identity<Count>) noexcept {
    this->place_as<Count>(counts);
  });
}

}  // namespace peerbus::moe
