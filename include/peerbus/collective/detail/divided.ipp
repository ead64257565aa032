// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include <peerbus/collective/detail/by_lanes.hpp>
#include <peerbus/collective/detail/divided.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/parts.hpp>
#include <peerbus/communicator/near_groups.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/function_ref.hpp>

namespace peerbus::collective::detail {

/// The places of the ranks in a ring, in the order of ranks.
struct ring_places {
  explicit ring_places(const call_rounds& all) noexcept
      : ranks{all.ranks()}, self{all.self().index()} {}
  std::size_t ranks;
  std::size_t self;

  /// Returns the rank that is `back` places behind this one; `back` is at most twice `ranks`.
  [[nodiscard]] rank_id behind(std::size_t back) const noexcept {
    return rank_id{(self + 2 * ranks - back) % ranks};
  }
  [[nodiscard]] rank_id previous() const noexcept { return behind(1); }
  [[nodiscard]] rank_id next() const noexcept { return behind(ranks - 1); }
};

/// Sends row `hop` of the page to the next rank, which has `sent` bytes, and returns the row that
/// the previous rank has sent. Rows lie `stride` bytes apart.
PEERBUS_INLINE const std::byte* pass_on(call_rounds& all, std::size_t hop, std::size_t stride,
                                        std::size_t sent) {
  const ring_places ring{all};
  all.send_step(hop + 1, ring.next(), hop, {hop * stride, sent});
  all.await_step(hop + 1, ring.previous(), [](rank_id) noexcept { return true; });
  return all.step_payload(ring.previous(), hop, hop * stride);
}

/// Does a round in which rows go round the ring. The row for a rank begins at the rank after it,
/// and each rank adds its own. `row_for(rank)` returns this rank's row for `rank`, of up to
/// `stride` bytes. The sum of the rows for this rank goes to `own_sum`, or to the start of the next
/// page if that is nullptr.
PEERBUS_INLINE void reduce_around(
    call_rounds& all, const request& given, const reducer& reduce, std::size_t stride,
    peerbus::detail::function_ref<std::span<const std::byte>(rank_id)> row_for,
    std::byte* own_sum) {
  const ring_places ring{all};
  std::span<const std::byte> row = row_for(ring.behind(1));
  all.copy(all.page(), row.data(), row.size());
  all.begin_steps();
  for (std::size_t hop = 0; hop + 1 < ring.ranks; ++hop) {
    const std::byte* const partial = pass_on(all, hop, stride, row.size());
    row = row_for(ring.behind(hop + 2));
    std::byte* sum = all.step_page() + (hop + 1) * stride;
    if (hop + 2 == ring.ranks) sum = own_sum != nullptr ? own_sum : all.page();
    const std::array<const std::byte*, 2> both{partial, row.data()};
    reduce_by_lanes(all, given, reduce, sum, both, row.size());
  }
}

/// Compares the calls of all ranks, because only neighbours meet in steps, and then calls
/// `do_slice(done, bytes)` for each slice of `total` bytes.
PEERBUS_INLINE void in_ring_slices(
    call_rounds& all, choice_of operation, const request& given, std::size_t total,
    peerbus::detail::function_ref<void(std::size_t, std::size_t)> do_slice) {
  const auto put_nothing = [&](std::size_t, std::size_t) {
    all.put([](rank_id) noexcept { return byte_range{}; });
  };
  const auto do_slices = [&](std::size_t, std::size_t) {
    const std::size_t step =
        whole_slice(algorithm::ring, operation, all.shape(), given.element.bytes);
    for (std::size_t done = 0; done < total; done += step)
      do_slice(done, std::min(step, total - done));
  };
  all.in_slices(total, total, put_nothing, do_slices);
}

PEERBUS_INLINE void all_reduce_by_ring(call_rounds& all, const request& given,
                                       const reducer& reduce) {
  const ring_places ring{all};
  const auto reduce_slice = [&](std::size_t done, std::size_t bytes) {
    const auto part_of = [&](rank_id rank) noexcept {
      return part_of_rank(given, bytes, rank, ring.ranks);
    };
    const std::size_t stride = align_up(part_of(rank_id{0}).bytes, cache_line_bytes);
    std::byte* const output = given.output.data() + done;
    const auto row_for = [&](rank_id rank) noexcept {
      const byte_range part = part_of(rank);
      return given.input.subspan(done + part.offset, part.bytes);
    };
    reduce_around(all, given, reduce, stride, row_for, nullptr);

    // The sums go round in the same direction.
    all.begin_steps();
    byte_range part = part_of(all.self());
    all.copy(output + part.offset, all.step_page(), part.bytes);
    for (std::size_t hop = 0; hop + 1 < ring.ranks; ++hop) {
      const std::byte* const sum = pass_on(all, hop, stride, part.bytes);
      part = part_of(ring.behind(hop + 1));
      all.copy(output + part.offset, sum, part.bytes);
      if (hop + 2 < ring.ranks) all.copy(all.step_page() + (hop + 1) * stride, sum, part.bytes);
    }
  };
  in_ring_slices(all, choice_of::all_reduce, given, given.input.size(), reduce_slice);
}

PEERBUS_INLINE void all_reduce_by_two_levels(call_rounds& all, const request& given,
                                             const reducer& reduce) {
  const near_groups& groups = all.groups();
  const std::span<const rank_id> near = groups.near();
  const rank_id place{groups.own_place};
  const auto part_of = [&](std::size_t bytes, std::size_t index) noexcept {
    return part_of_rank(given, bytes, rank_id{index}, near.size());
  };
  const auto nothing = [](rank_id) noexcept { return byte_range{}; };
  const auto put_to_near = [&](std::size_t done, std::size_t bytes) {
    // Near ranks load the page, of which far ranks get nothing.
    all.copy(all.page(), given.input.data() + done, bytes);
    all.put(nothing);
  };
  const auto reduce_slice = [&](std::size_t done, std::size_t bytes) {
    const byte_range own = part_of(bytes, place.index());
    const std::byte* const input = given.input.data() + done;
    std::byte* const output = given.output.data() + done;

    const std::span<const std::byte*> sources = all.sources();
    for (std::size_t i = 0; i < near.size(); ++i)
      sources[i] = near[i] == all.self() ? input + own.offset : all.payload(near[i], own.offset);
    reduce_by_lanes(all, given, reduce, all.page(), sources.first(near.size()), own.bytes);

    all.meet([&](rank_id peer) noexcept {
      return byte_range{0, groups.is_counterpart(peer) ? own.bytes : 0};
    });
    for (std::size_t group = 0; group < groups.count(); ++group)
      sources[group] = all.payload(groups.counterpart(group), 0);
    reduce_by_lanes(all, given, reduce, all.page(), sources.first(groups.count()), own.bytes);

    all.meet(nothing);
    for (std::size_t i = 0; i < near.size(); ++i) {
      const byte_range part = part_of(bytes, i);
      all.copy(output + part.offset, all.payload(near[i], 0), part.bytes);
    }
  };
  all.in_slices(
      given.input.size(),
      whole_slice(algorithm::two_levels, choice_of::all_reduce, all.shape(), given.element.bytes),
      put_to_near, reduce_slice);
}

PEERBUS_INLINE void reduce_scatter_by_ring(call_rounds& all, const request& given,
                                           const reducer& reduce) {
  const std::size_t block = given.output.size();
  const auto reduce_slice = [&](std::size_t done, std::size_t bytes) {
    const auto row_for = [&](rank_id rank) noexcept {
      return given.input.subspan(rank.index() * block + done, bytes);
    };
    reduce_around(all, given, reduce, align_up(bytes, cache_line_bytes), row_for,
                  given.output.data() + done);
  };
  in_ring_slices(all, choice_of::reduce_scatter, given, block, reduce_slice);
}

PEERBUS_INLINE void reduce_scatter_by_two_levels(call_rounds& all, const request& given,
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
    const std::size_t stride = all.part_stride();
    const std::span<const std::byte*> sources = all.sources();
    for (std::size_t group = 0; group < groups.count(); ++group) {
      const rank_id target = groups.counterpart(group);
      for (std::size_t i = 0; i < near.size(); ++i)
        sources[i] = near[i] == all.self() ? given.input.data() + target.index() * block + done
                                           : all.payload(near[i], target.index() * stride);
      reduce_by_lanes(all, given, reduce, all.page() + group * stride, sources.first(near.size()),
                      bytes);
    }
    all.meet([&](rank_id peer) noexcept {
      for (std::size_t group = 0; group < groups.count(); ++group)
        if (groups.counterpart(group) == peer) return byte_range{group * stride, bytes};
      return byte_range{};
    });
    for (std::size_t group = 0; group < groups.count(); ++group)
      sources[group] = all.payload(groups.counterpart(group), groups.own_group * stride);
    reduce_by_lanes(all, given, reduce, given.output.data() + done, sources.first(groups.count()),
                    bytes);
  };
  all.in_slices(block,
                whole_slice(algorithm::two_levels, choice_of::reduce_scatter, all.shape(),
                            given.element.bytes),
                publish_to_near, reduce_slice);
}

}  // namespace peerbus::collective::detail
