// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/copy.hpp>
#include <peerbus/collective/detail/divided.hpp>
#include <peerbus/collective/detail/near_groups.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/detail/slice_road.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE void all_reduce_by_ring(call& all, const operands& given, const reducer& reduce,
                                       std::size_t step) {
  const std::size_t n = all.ranks();
  const std::size_t self = all.self().index();
  const rank_id next{(self + 1) % n};
  const rank_id previous{(self + n - 1) % n};
  const auto is_told = [](rank_id) noexcept { return true; };
  // The calls are compared by all ranks before the first step, in which only neighbours meet.
  all.meet([](rank_id) noexcept { return byte_range{}; });
  all.in_slices(given.input.size(), step, [&](std::size_t done, std::size_t bytes) {
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
  });
}

PEERBUS_INLINE void all_reduce_by_two_levels(call& all, const operands& given,
                                             const reducer& reduce, std::size_t step) {
  const near_groups& groups = all.groups();
  const std::span<const rank_id> near = groups.near();
  const rank_id place{groups.place()};
  all.in_slices(given.input.size(), step, [&](std::size_t done, std::size_t bytes) {
    const auto part_of = [&](std::size_t index) noexcept {
      return part_of_rank(given, bytes, rank_id{index}, near.size());
    };
    const byte_range own = part_of(place.index());
    const std::size_t elements = own.bytes / given.element.bytes;
    const auto nothing = [](rank_id) noexcept { return byte_range{}; };
    const std::byte* const input = given.input.data() + done;
    std::byte* const output = given.output.data() + done;

    // Near ranks load the page, of which far ranks get nothing.
    copy_bytes(all.page(), input, bytes);
    all.meet(nothing);
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
    for (std::size_t i = 0; i < near.size(); ++i)
      copy_bytes(output + part_of(i).offset, all.payload(near[i], 0), part_of(i).bytes);
  });
}

}  // namespace peerbus::collective::detail
