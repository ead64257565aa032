// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/all_reduce.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/divided.hpp>
#include <peerbus/collective/detail/doubling.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/parts.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// Each rank reads all of all operands.
PEERBUS_INLINE void all_reduce_in_one_shot(call& all, const operands& given,
                                           const reducer& reduce) {
  const std::size_t step = whole_elements(all.slice_bytes(1), given.element);
  all.in_slices(
      given.input.size(), step,
      [&](std::size_t done, std::size_t bytes) {
        all.offer(0, done, bytes);
        all.put([bytes](rank_id) noexcept { return byte_range{0, bytes}; });
      },
      [&](std::size_t done, std::size_t bytes) {
        for (const rank_id peer : all.peers())
          all.sources()[peer.index()] = all.slice(peer, 0, done);
        all.sources()[all.self().index()] = given.input.data() + done;
        reduce_by_lanes(all, given, reduce, given.output.data() + done, all.sources(), bytes);
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
  const std::size_t piece = whole_elements(all.crew().lanes() << 15U, given.element);
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

/// Each rank reduces its part of a slice in one round, and publishes the result in the next.
PEERBUS_INLINE void all_reduce_in_two_shots(call& all, const operands& given,
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

/// Returns the function that carries out a call by an algorithm.
inline operation::body* carried_out_by(algorithm by) noexcept {
  switch (by) {
    case algorithm::two_shots: return all_reduce_in_two_shots;
    case algorithm::doubling: return all_reduce_by_doubling;
    case algorithm::ring: return all_reduce_by_ring;
    case algorithm::two_levels: return all_reduce_by_two_levels;
    default: return all_reduce_in_one_shot;
  }
}

PEERBUS_INLINE operation all_reduce_bytes(team& on, const operands& given, const reducer& reduce,
                                          const call_options& options) {
  std::string objection = object_to(given, 0);
  if (given.output.size() != given.input.size())
    objection = wrong_size("output", given.output_count(), 1, given.input_count());
  const std::size_t least = on.map().slice_bytes(on.size());
  if (whole_elements(least, given.element) == 0) objection = too_large(given.element, least);

  algorithm by = call::algorithm_of_all_reduce(on, given, reduce.name());
  // An element may be too large for the slices of an algorithm that divides them further.
  if (by != algorithm::one_shot && by != algorithm::two_shots &&
      whole_slice(by, choice_of::all_reduce, on.shape(), given.element.bytes) == 0)
    by = algorithm::one_shot;
  operand_place place = given.place();
  if (place == operand_place::window && given.is_in_place())
    place = operand_place::window_in_place;
  else if (by != algorithm::one_shot)
    place = operand_place::memory;

  operation all{
      on,
      call_header::of("all_reduce", given.element, given.input_count()).by(reduce.name()).at(place),
      given,
      options,
      std::move(objection),
      carried_out_by(by)};
  if (all.rounds().is_in_window() && given.is_in_place()) all.carry_out_by(all_reduce_in_window);
  return all;
}

}  // namespace peerbus::collective::detail
