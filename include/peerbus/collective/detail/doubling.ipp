// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include <peerbus/collective/detail/by_lanes.hpp>
#include <peerbus/collective/detail/doubling.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE void begin_doubling(call_rounds& all, std::size_t bytes) {
  const std::size_t self = all.self().index();
  all.begin_steps();
  all.send_step(1, rank_id{(self + all.ranks() - 1) % all.ranks()}, self, {0, bytes});
}

PEERBUS_INLINE void end_doubling(call_rounds& all, std::size_t bytes) {
  const std::size_t n = all.ranks();
  const std::size_t self = all.self().index();
  std::uint64_t step = 1;
  for (std::size_t distance = 1; distance < n; distance *= 2, ++step) {
    const rank_id target{(self + n - distance) % n};
    const rank_id source{(self + distance) % n};
    const std::size_t rows = std::min(distance, n - distance);
    if (step > 1) all.send_step(step, target, self, {0, rows * bytes});
    all.await_step(step, source, [&](rank_id peer) noexcept {
      const std::size_t apart = (self + n - peer.index()) % n;
      return std::has_single_bit(apart) && apart <= distance;
    });
    all.copy(all.step_page() + distance * bytes, all.step_payload(source, source.index(), 0),
             rows * bytes);
  }
}

/// Returns the row of `rank` in the page after `end_doubling`.
inline const std::byte* row_of(call_rounds& all, rank_id rank, std::size_t bytes) noexcept {
  const std::size_t n = all.ranks();
  return all.step_page() + (rank.index() + n - all.self().index()) % n * bytes;
}

PEERBUS_INLINE void all_reduce_by_doubling(call_rounds& all, const request& given,
                                           const reducer& reduce) {
  all.in_slices(
      given.input.size(),
      whole_slice(algorithm::doubling, choice_of::all_reduce, all.shape(), given.element.bytes),
      [&](std::size_t done, std::size_t bytes) {
        all.offer(0, done, bytes);
        begin_doubling(all, bytes);
      },
      [&](std::size_t done, std::size_t bytes) {
        end_doubling(all, bytes);
        for (const rank_id peer : all.peers())
          all.sources()[peer.index()] = row_of(all, peer, bytes);
        all.sources()[all.self().index()] = given.input.data() + done;
        reduce_by_lanes(all, given, reduce, given.output.data() + done, all.sources(), bytes);
      });
}

PEERBUS_INLINE void all_gather_by_doubling(call_rounds& all, const request& given, const reducer&) {
  const std::size_t block = given.input.size();
  all.in_slices(
      block, slice_of(algorithm::doubling, choice_of::all_gather, all.shape()),
      [&](std::size_t done, std::size_t bytes) {
        all.offer(0, done, bytes);
        begin_doubling(all, bytes);
      },
      [&](std::size_t done, std::size_t bytes) {
        end_doubling(all, bytes);
        for (const rank_id peer : all.peers())
          all.copy(given.output.data() + peer.index() * block + done, row_of(all, peer, bytes),
                   bytes);
        all.copy(given.output.data() + all.self().index() * block + done, given.input.data() + done,
                 bytes);
      });
}

}  // namespace peerbus::collective::detail
