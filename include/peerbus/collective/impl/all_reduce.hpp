// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/all_reduce.hpp>
#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/copy.hpp>
#include <peerbus/collective/detail/divided.hpp>
#include <peerbus/collective/detail/doubling.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/parts.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/detail/slice_road.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// Each rank reads all of all operands.
PEERBUS_INLINE void all_reduce_in_one_shot(call& all, const operands& given,
                                           const reducer& reduce) {
  const std::size_t step = whole_elements(all.slice_bytes(1), given.element);
  all.in_slices(given.input.size(), step, [&](std::size_t done, std::size_t bytes) {
    all.offer(0, done, bytes);
    all.meet([bytes](rank_id) noexcept { return byte_range{0, bytes}; });
    for (const rank_id peer : all.peers()) all.sources()[peer.index()] = all.slice(peer, 0, done);
    all.sources()[all.self().index()] = given.input.data() + done;
    reduce(given.output.data() + done, all.sources(), bytes / given.element.bytes);
  });
}

PEERBUS_INLINE byte_range part_of_rank(const operands& given, std::size_t bytes, rank_id rank,
                                       std::size_t ranks) noexcept {
  const std::size_t elements = bytes / given.element.bytes;
  const std::size_t part = (elements + ranks - 1) / ranks * given.element.bytes;
  const std::size_t offset = std::min(rank.index() * part, bytes);
  return {offset, std::min(part, bytes - offset)};
}

/// Each rank reduces its part of the operands in the window and stores the result to all of them.
/// No other rank accesses this part of any operand.
PEERBUS_INLINE void all_reduce_in_window(call& all, const operands& given, const reducer& reduce) {
  // A piece of the result is stored to the peers while it is still in the cache.
  const std::size_t piece = whole_elements(std::size_t{1} << 15U, given.element);
  const std::size_t step = std::max<std::size_t>(piece, given.element.bytes);
  all.in_slices(given.input.size(), given.input.size(), [&](std::size_t, std::size_t total) {
    all.meet([](rank_id) noexcept { return byte_range{}; });
    const byte_range own = part_of_rank(given, total, all.self(), all.ranks());
    for (std::size_t done = 0; done < own.bytes; done += step) {
      const std::size_t bytes = std::min(step, own.bytes - done);
      const std::size_t offset = own.offset + done;
      for (const rank_id rank : all_ranks{all.ranks()})
        all.sources()[rank.index()] = all.operand(rank) + offset;
      std::byte* const result = given.output.data() + offset;
      reduce(result, all.sources(), bytes / given.element.bytes);
      for (const rank_id peer : all.peers()) copy_bytes(all.operand(peer) + offset, result, bytes);
    }
  });
}

/// Each rank reduces its part of a slice in one round, and publishes the result in the next.
PEERBUS_INLINE void all_reduce_in_two_shots(call& all, const operands& given,
                                            const reducer& reduce) {
  const std::size_t ranks = all.ranks();
  const std::size_t step = ranks * whole_elements(all.slice_bytes(ranks), given.element);
  all.in_slices(given.input.size(), step, [&](std::size_t done, std::size_t bytes) {
    const auto part_of = [&](rank_id rank) noexcept {
      return part_of_rank(given, bytes, rank, ranks);
    };
    // No more than `slice_bytes(ranks)`; the part of rank 0 is as long as any other.
    const std::size_t stride = align_up(part_of(rank_id{0}).bytes, cache_line_bytes);
    const std::byte* const input = given.input.data() + done;
    std::byte* const output = given.output.data() + done;
    for (const rank_id peer : all.peers())
      copy_bytes(all.page() + peer.index() * stride, input + part_of(peer).offset,
                 part_of(peer).bytes);
    all.meet([&](rank_id peer) noexcept {
      return byte_range{peer.index() * stride, part_of(peer).bytes};
    });

    const byte_range own = part_of(all.self());
    for (const rank_id peer : all.peers())
      all.sources()[peer.index()] = all.slice(peer, all.self().index() * stride, done);
    all.sources()[all.self().index()] = input + own.offset;
    std::byte* const result = all.page();
    reduce(result, all.sources(), own.bytes / given.element.bytes);
    all.publish([&](rank_id) noexcept { return byte_range{0, own.bytes}; });
    copy_bytes(output + own.offset, result, own.bytes);
    all.await();
    for (const rank_id peer : all.peers())
      copy_bytes(output + part_of(peer).offset, all.slice(peer, 0, done), part_of(peer).bytes);
  });
}

PEERBUS_INLINE void all_reduce_bytes(team& on, const operands& given, const reducer& reduce,
                                     const call_options& options) {
  std::string objection = object_to(given, 0);
  if (given.output.size() != given.input.size())
    objection = wrong_size("output", given.output_count(), 1, given.input_count());
  const std::size_t least = on.map().slice_bytes(on.size());
  if (whole_elements(least, given.element) == 0) objection = too_large(given.element, least);

  algorithm by = call::algorithm_of_all_reduce(on, given, reduce.name());
  std::size_t slice = 0;
  if (by != algorithm::one_shot && by != algorithm::two_shots) {
    slice = whole_slice(by, choice_of::all_reduce, on.shape(), given.element.bytes);
    if (slice == 0) by = algorithm::one_shot;
  }
  operand_place place = given.place();
  if (place == operand_place::window && given.is_in_place())
    place = operand_place::window_in_place;
  else if (by != algorithm::one_shot)
    place = operand_place::memory;

  call all{
      on,
      call_header::of("all_reduce", given.element, given.input_count()).by(reduce.name()).at(place),
      given, options, objection};
  if (all.is_in_window() && given.is_in_place())
    all_reduce_in_window(all, given, reduce);
  else if (by == algorithm::two_shots)
    all_reduce_in_two_shots(all, given, reduce);
  else if (by == algorithm::doubling)
    all_reduce_by_doubling(all, given, reduce, slice);
  else if (by == algorithm::ring)
    all_reduce_by_ring(all, given, reduce, slice);
  else if (by == algorithm::two_levels)
    all_reduce_by_two_levels(all, given, reduce, slice);
  else
    all_reduce_in_one_shot(all, given, reduce);
}

}  // namespace peerbus::collective::detail
