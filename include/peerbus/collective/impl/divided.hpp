// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/copy.hpp>
#include <peerbus/collective/detail/divided.hpp>
#include <peerbus/collective/detail/near_groups.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/parts.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/detail/slice_road.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// Reduces one slice of `all_reduce_by_ring`.
PEERBUS_INLINE void reduce_by_ring(call& all, const operands& given, const reducer& reduce,
                                   std::size_t done, std::size_t bytes) {
  const std::size_t n = all.ranks();
  const std::size_t self = all.self().index();
  const rank_id next{(self + 1) % n};
  const rank_id previous{(self + n - 1) % n};
  const auto is_told = [](rank_id) noexcept { return true; };
  // The rank `back` places behind this one, which reduces the part that is returned.
  const auto part_behind = [&](std::size_t back) noexcept {
    return part_of_rank(given, bytes, rank_id{(self + 2 * n - back) % n}, n);
  };
  const std::size_t stride =
      align_up(part_of_rank(given, bytes, rank_id{0}, n).bytes, cache_line_bytes);
  const std::byte* const input = given.input.data() + done;
  std::byte* const output = given.output.data() + done;

  copy_bytes(all.page(), input + part_behind(1).offset, part_behind(1).bytes);
  all.begin_steps();
  for (std::size_t hop = 0; hop + 1 < n; ++hop) {
    all.send_step(hop + 1, next, hop, {hop * stride, part_behind(hop + 1).bytes});
    all.await_step(hop + 1, previous, is_told);
    const byte_range part = part_behind(hop + 2);
    const std::array<const std::byte*, 2> both{all.step_payload(previous, hop, hop * stride),
                                               input + part.offset};
    // The last sum is this rank's own part, the first row of the next page.
    const bool is_last = hop + 2 == n;
    std::byte* const sum = is_last ? all.page() : all.step_page() + (hop + 1) * stride;
    reduce(sum, both, part.bytes / given.element.bytes);
  }

  all.begin_steps();
  copy_bytes(output + part_behind(0).offset, all.step_page(), part_behind(0).bytes);
  for (std::size_t hop = 0; hop + 1 < n; ++hop) {
    all.send_step(hop + 1, next, hop, {hop * stride, part_behind(hop).bytes});
    all.await_step(hop + 1, previous, is_told);
    const byte_range part = part_behind(hop + 1);
    const std::byte* const sum = all.step_payload(previous, hop, hop * stride);
    copy_bytes(output + part.offset, sum, part.bytes);
    if (hop + 2 < n) copy_bytes(all.step_page() + (hop + 1) * stride, sum, part.bytes);
  }
}

PEERBUS_INLINE void all_reduce_by_ring(call& all, const operands& given, const reducer& reduce) {
  // The calls are compared by all ranks before the first step, in which only neighbours meet.
  const auto put_nothing = [&](std::size_t, std::size_t) {
    all.put([](rank_id) noexcept { return byte_range{}; });
  };
  const auto reduce_slices = [&](std::size_t, std::size_t total) {
    const std::size_t step =
        whole_slice(algorithm::ring, choice_of::all_reduce, all.shape(), given.element.bytes);
    for (std::size_t done = 0; done < total; done += step)
      reduce_by_ring(all, given, reduce, done, std::min(step, total - done));
  };
  all.in_slices(given.input.size(), given.input.size(), put_nothing, reduce_slices);
}

PEERBUS_INLINE void all_reduce_by_two_levels(call& all, const operands& given,
                                             const reducer& reduce) {
  const near_groups& groups = all.groups();
  const std::span<const rank_id> near = groups.near();
  const rank_id place{groups.place()};
  const auto part_of = [&](std::size_t bytes, std::size_t index) noexcept {
    return part_of_rank(given, bytes, rank_id{index}, near.size());
  };
  const auto nothing = [](rank_id) noexcept { return byte_range{}; };
  const auto put_to_near = [&](std::size_t done, std::size_t bytes) {
    // Near ranks load the page, of which far ranks get nothing.
    copy_bytes(all.page(), given.input.data() + done, bytes);
    all.put(nothing);
  };
  const auto reduce_slice = [&](std::size_t done, std::size_t bytes) {
    const byte_range own = part_of(bytes, place.index());
    const std::size_t elements = own.bytes / given.element.bytes;
    const std::byte* const input = given.input.data() + done;
    std::byte* const output = given.output.data() + done;

    const std::span<const std::byte*> sources = all.sources();
    for (std::size_t i = 0; i < near.size(); ++i)
      sources[i] = near[i] == all.self() ? input + own.offset : all.payload(near[i], own.offset);
    reduce(all.page(), sources.first(near.size()), elements);

    all.meet([&](rank_id peer) noexcept {
      return byte_range{0, groups.is_counterpart(peer) ? own.bytes : 0};
    });
    for (std::size_t group = 0; group < groups.count(); ++group)
      sources[group] = all.payload(groups.counterpart(group), 0);
    reduce(all.page(), sources.first(groups.count()), elements);

    all.meet(nothing);
    for (std::size_t i = 0; i < near.size(); ++i) {
      const byte_range part = part_of(bytes, i);
      copy_bytes(output + part.offset, all.payload(near[i], 0), part.bytes);
    }
  };
  all.in_slices(
      given.input.size(),
      whole_slice(algorithm::two_levels, choice_of::all_reduce, all.shape(), given.element.bytes),
      put_to_near, reduce_slice);
}

PEERBUS_INLINE void reduce_scatter_by_ring(call& all, const operands& given,
                                           const reducer& reduce) {
  const std::size_t n = all.ranks();
  const std::size_t self = all.self().index();
  const rank_id next{(self + 1) % n};
  const rank_id previous{(self + n - 1) % n};
  const std::size_t block = given.output.size();
  // The calls are compared by all ranks before the first step, in which only neighbours meet.
  const auto put_nothing = [&](std::size_t, std::size_t) {
    all.put([](rank_id) noexcept { return byte_range{}; });
  };
  const auto reduce_slice = [&](std::size_t done, std::size_t bytes) {
    const std::size_t stride = align_up(bytes, cache_line_bytes);
    // The row for the rank that is `back` places behind this one.
    const auto row_behind = [&](std::size_t back) noexcept {
      return given.input.data() + (self + 2 * n - back) % n * block + done;
    };
    copy_bytes(all.page(), row_behind(1), bytes);
    all.begin_steps();
    for (std::size_t hop = 0; hop + 1 < n; ++hop) {
      all.send_step(hop + 1, next, hop, {hop * stride, bytes});
      all.await_step(hop + 1, previous, [](rank_id) noexcept { return true; });
      const std::array<const std::byte*, 2> both{all.step_payload(previous, hop, hop * stride),
                                                 row_behind(hop + 2)};
      const bool is_last = hop + 2 == n;  // That is this rank's own row.
      std::byte* const sum =
          is_last ? given.output.data() + done : all.step_page() + (hop + 1) * stride;
      reduce(sum, both, bytes / given.element.bytes);
    }
  };
  const auto reduce_slices = [&](std::size_t, std::size_t total) {
    const std::size_t step =
        whole_slice(algorithm::ring, choice_of::reduce_scatter, all.shape(), given.element.bytes);
    for (std::size_t done = 0; done < total; done += step)
      reduce_slice(done, std::min(step, total - done));
  };
  all.in_slices(block, block, put_nothing, reduce_slices);
}

PEERBUS_INLINE void reduce_scatter_by_two_levels(call& all, const operands& given,
                                                 const reducer& reduce) {
  const near_groups& groups = all.groups();
  const std::span<const rank_id> near = groups.near();
  const std::size_t block = given.output.size();
  const auto publish_to_near = [&](std::size_t done, std::size_t bytes) {
    // Near ranks load the page, of which far ranks get nothing.
    offer_parts(all, block, done, bytes);
    all.put([](rank_id) noexcept { return byte_range{}; });
  };
  const auto reduce_slice = [&](std::size_t done, std::size_t bytes) {
    const std::size_t elements = bytes / given.element.bytes;
    const std::size_t stride = all.part_stride();
    const std::span<const std::byte*> sources = all.sources();
    std::size_t own_group = 0;
    for (std::size_t group = 0; group < groups.count(); ++group) {
      const rank_id target = groups.counterpart(group);
      if (target == all.self()) own_group = group;
      for (std::size_t i = 0; i < near.size(); ++i)
        sources[i] = near[i] == all.self() ? given.input.data() + target.index() * block + done
                                           : all.payload(near[i], target.index() * stride);
      reduce(all.page() + group * stride, sources.first(near.size()), elements);
    }
    all.meet([&](rank_id peer) noexcept {
      for (std::size_t group = 0; group < groups.count(); ++group)
        if (groups.counterpart(group) == peer) return byte_range{group * stride, bytes};
      return byte_range{};
    });
    for (std::size_t group = 0; group < groups.count(); ++group)
      sources[group] = all.payload(groups.counterpart(group), own_group * stride);
    reduce(given.output.data() + done, sources.first(groups.count()), elements);
  };
  all.in_slices(block,
                whole_slice(algorithm::two_levels, choice_of::reduce_scatter, all.shape(),
                            given.element.bytes),
                publish_to_near, reduce_slice);
}

}  // namespace peerbus::collective::detail
