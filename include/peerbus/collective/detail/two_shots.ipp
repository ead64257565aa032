// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include <peerbus/collective/detail/by_lanes.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/two_shots.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// Returns the part of `bytes` bytes of the elements that a rank reduces.
PEERBUS_INLINE byte_range part_of_rank(const request& given, std::size_t bytes, rank_id rank,
                                       std::size_t ranks) noexcept {
  const std::size_t elements = bytes / given.element.bytes;
  const std::size_t part = (elements + ranks - 1) / ranks * given.element.bytes;
  const std::size_t offset = std::min(rank.index() * part, bytes);
  return {offset, std::min(part, bytes - offset)};
}

PEERBUS_INLINE void all_reduce_in_window(call_rounds& all, const request& given,
                                         const reducer& reduce) {
  // A piece of the result is stored to the peers while it is still in the cache.
  const std::size_t piece = whole_elements(all.pool().lanes() << 15U, given.element);
  const std::size_t step = std::max<std::size_t>(piece, given.element.bytes);
  const auto put_nothing = [&](std::size_t, std::size_t) {
    all.put([](rank_id) noexcept { return byte_range{}; });
  };
  const auto reduce_own_part = [&](std::size_t, std::size_t total) {
    const byte_range own = part_of_rank(given, total, all.self(), all.ranks());
    for (std::size_t done = 0; done < own.bytes; done += step) {
      const std::size_t bytes = std::min(step, own.bytes - done);
      const std::size_t offset = own.offset + done;
      for (const rank_id rank : all_ranks{all.ranks()})
        all.sources()[rank.index()] = all.operand(rank) + offset;
      std::byte* const result = given.output.data() + offset;
      reduce_by_lanes(all, given, reduce, result, all.sources(), bytes);
      for (const rank_id peer : all.peers()) all.copy(all.operand(peer) + offset, result, bytes);
    }
  };
  all.in_slices(given.input.size(), given.input.size(), put_nothing, reduce_own_part);
}

PEERBUS_INLINE void all_reduce_in_two_shots(call_rounds& all, const request& given,
                                            const reducer& reduce) {
  const std::size_t ranks = all.ranks();
  const std::size_t step = ranks * whole_elements(all.slice_bytes(ranks), given.element);
  const auto part_of = [&](std::size_t bytes, rank_id rank) noexcept {
    return part_of_rank(given, bytes, rank, ranks);
  };
  // The distance of parts in a page: no more than `slice_bytes(ranks)`, because the part of rank 0
  // is as long as any other.
  const auto stride_of = [&](std::size_t bytes) noexcept {
    return align_up(part_of(bytes, rank_id{0}).bytes, cache_line_bytes);
  };

  const auto publish_parts = [&](std::size_t done, std::size_t bytes) {
    const std::byte* const input = given.input.data() + done;
    const std::size_t stride = stride_of(bytes);
    for (const rank_id peer : all.peers()) {
      const byte_range part = part_of(bytes, peer);
      all.copy(all.page() + peer.index() * stride, input + part.offset, part.bytes);
    }
    all.put([&](rank_id peer) noexcept {
      return byte_range{peer.index() * stride, part_of(bytes, peer).bytes};
    });
  };
  const auto reduce_own_part = [&](std::size_t done, std::size_t bytes) {
    const byte_range own = part_of(bytes, all.self());
    for (const rank_id peer : all.peers())
      all.sources()[peer.index()] = all.slice(peer, all.self().index() * stride_of(bytes), done);
    all.sources()[all.self().index()] = given.input.data() + done + own.offset;
    std::byte* const result = all.page();
    reduce_by_lanes(all, given, reduce, result, all.sources(), own.bytes);
    all.publish([&](rank_id) noexcept { return byte_range{0, own.bytes}; });
    std::byte* const output = given.output.data() + done;
    all.copy(output + own.offset, result, own.bytes);
    all.await();
    for (const rank_id peer : all.peers()) {
      const byte_range part = part_of(bytes, peer);
      all.copy(output + part.offset, all.slice(peer, 0, done), part.bytes);
    }
  };
  all.in_slices(given.input.size(), step, publish_parts, reduce_own_part);
}

}  // namespace peerbus::collective::detail
