// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include <peerbus/core/placed.hpp>
#include <peerbus/moe/control/peer_checks.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE peer_checks::peer_checks(const exchange_config& config,
                                        const block_geometry& geometry,
                                        std::shared_ptr<const expert_router> router, rank_id rank,
                                        std::size_t rank_count)
    : geometry_{geometry},
      router_{std::move(router)},
      rank_{rank},
      ranks_{rank_count},
      top_k_{config.top_k},
      tokens_{config.max_tokens},
      count_bytes_{count_bytes_for(config.max_tokens)},
      first_block_{geometry.has_slots() ? geometry.blocks.first(rank) : 0},
      stride_{(geometry.has_slots() ? geometry.blocks.count(rank) : geometry.blocks.experts()) *
              count_bytes_},
      counts_(rank_count * stride_),
      // Not initialised, so that pages are committed only as rows arrive.
      origins_{std::make_unique_for_overwrite<wire_origin[]>(geometry.row_capacity)} {
  if (!geometry.by_rank) return;
  experts_ = std::make_unique_for_overwrite<std::int32_t[]>(geometry.row_capacity * config.top_k);
  seen_.resize(router_->map().count(rank));
}

template <class Count>
void peer_checks::copy_counts(const count_table& shown, std::span<const std::uint32_t> own,
                              sender_test has_sent) noexcept {
  const std::size_t blocks = stride_ / sizeof(Count);
  if (blocks == 0) return;
  for (const rank_id source : all_ranks{ranks_}) {
    std::byte* const copy = counts_.data() + source.index() * stride_;
    if (source == rank_) {
      const auto own_counts = own.subspan(first_block_, blocks);
      std::transform(own_counts.begin(), own_counts.end(), peerbus::detail::placed<Count>(copy),
                     [](std::uint32_t wide_count) { return static_cast<Count>(wide_count); });
    } else if (has_sent(source)) {
      std::memcpy(copy, shown.first + source.index() * shown.stride, stride_);
    } else {
      std::memset(copy, 0, stride_);
    }
  }
}

template <class Count>
refusal peer_checks::check_counts(rank_id source, std::size_t bound) const noexcept {
  const auto* const counts =
      peerbus::detail::placed<Count>(counts_.data() + source.index() * stride_);
  const std::size_t blocks = stride_ / sizeof(Count);
  Count largest = 0;
  for (std::size_t b = 0; b < blocks; ++b) largest = std::max(largest, counts[b]);
  if (largest > bound) {
    const std::size_t block =
        first_block_ +
        static_cast<std::size_t>(std::find(counts, counts + blocks, largest) - counts);
    if (geometry_.by_rank)
      return refuse_peer(refusal_reason::rows_for_rank, source, block, largest, bound);
    const std::uint32_t logical = router_->map().logical(block);
    if (logical == vacant)
      return refuse_peer(refusal_reason::vacant_place, source, block, largest, 0);
    return refuse_peer(refusal_reason::rows_for_expert, source, logical, largest, bound);
  }
  if (geometry_.by_rank) return {};
  const expert_map& map = router_->map();
  for (std::size_t b = 0; b < blocks; ++b)
    if (counts[b] != 0 && map.logical(first_block_ + b) == vacant)
      return refuse_peer(refusal_reason::vacant_place, source, first_block_ + b, counts[b], 0);
  // Each token sends a rank no more rows than it has slots, and than the rank has experts.
  std::size_t b = 0;
  for (const rank_id owner : all_ranks{ranks_}) {
    if (geometry_.has_slots() && owner != rank_) continue;
    const std::size_t held = geometry_.blocks.count(owner);
    std::uint64_t sum = 0;
    for (const std::size_t end = b + held; b < end; ++b) sum += counts[b];
    if (const std::size_t most = bound * std::min(top_k_, held); sum > most)
      return refuse_peer(refusal_reason::rows_for_experts_of_rank, source, owner.index(), sum,
                         most);
  }
  return {};
}

PEERBUS_INLINE refusal peer_checks::take_counts(const count_table& shown,
                                                std::span<const std::uint32_t> own,
                                                sender_test has_sent, std::size_t bound) noexcept {
  refusal found;
  with_count_type(count_bytes_, [&]<class Count>(std::type_identity<Count>) noexcept {
    this->copy_counts<Count>(shown, own, has_sent);
    for (const rank_id source : all_ranks{ranks_}) {
      if (source == rank_) continue;
      found = this->check_counts<Count>(source, bound);
      if (found) return;
    }
  });
  return found;
}

PEERBUS_INLINE refusal peer_checks::take_rows(const recv_plan& arriving,
                                              const set_view& set) noexcept {
  std::fill(seen_.begin(), seen_.end(), 0U);
  for (std::size_t b = 0; b < arriving.blocks(); ++b)
    for (const rank_id source : all_ranks{ranks_}) {
      const auto rows = arriving.from(b, source);
      const std::uint32_t begin = rows[0];
      const std::uint32_t end = rows[1];
      if (begin == end) continue;
      std::memcpy(&origins_[begin], set.origin(begin), (end - begin) * sizeof(wire_origin));
      if (const refusal found = check_origins(source, begin, end)) return found;
      if (!experts_) continue;
      std::memcpy(&experts_[begin * top_k_], set.experts(begin),
                  (end - begin) * top_k_ * sizeof(std::int32_t));
      if (const refusal found = check_experts(source, begin, end)) return found;
    }
  return {};
}

PEERBUS_INLINE refusal peer_checks::check_origins(rank_id source, std::uint32_t begin,
                                                  std::uint32_t end) const noexcept {
  const std::size_t first_home = home_ranks_ == 0 ? source.index() : 0;
  const std::size_t homes = home_ranks_ == 0 ? 1 : home_ranks_;
  const std::size_t slots = geometry_.copies_per_token;
  for (std::uint32_t row = begin; row < end; ++row) {
    const wire_origin& origin = origins_[row];
    if (origin.rank - first_home >= homes)  // Wraps round for lower ranks.
      return home_ranks_ == 0
                 ? refuse_peer(refusal_reason::origin_rank, source, row, origin.rank, first_home)
                 : refuse_peer(refusal_reason::origin_home, source, row, origin.rank, homes);
    if (origin.token >= tokens_)
      return refuse_peer(refusal_reason::origin_token, source, row, origin.token, tokens_);
    if (origin.slot >= slots)
      return refuse_peer(refusal_reason::origin_slot, source, row, origin.slot, slots);
  }
  return {};
}

PEERBUS_INLINE refusal peer_checks::check_experts(rank_id source, std::uint32_t begin,
                                                  std::uint32_t end) noexcept {
  const expert_map& map = router_->map();
  const std::size_t held = map.count(rank_);
  const std::size_t first = map.first(rank_);
  for (std::size_t row = begin; row < end; ++row) {
    const auto mark = static_cast<std::uint32_t>(row + 1);
    for (std::size_t s = row * top_k_; s < (row + 1) * top_k_; ++s) {
      if (experts_[s] == -1) continue;
      const auto e = static_cast<std::size_t>(experts_[s]);  // Negative numbers become large.
      if (e >= held) return refuse_peer(refusal_reason::expert_of_row, source, row, e, held);
      if (map.logical(first + e) == vacant)
        return refuse_peer(refusal_reason::vacant_place, source, first + e, 0, 0);
      // A token names an expert once, and the index of uses has no room for more.
      if (std::exchange(seen_[e], mark) == mark)
        return refuse_peer(refusal_reason::expert_again, source, row, e, 0);
    }
  }
  return {};
}

}  // namespace peerbus::moe::detail
