// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/lane.hpp>

namespace peerbus::moe {

/// Deals out items to the lanes of a rank, evenly and in the order in which they leave.
/// `for_each_rank(call)` calls `call(rank)` for the ranks in that order and stops at the first
/// failure; `range_of(rank)` is the part of the items that goes to a rank. Calls
/// `visit(rank, range)` for the part of each that lane `as` has, which may be empty.
/// Returns: ok, or the first failure of `visit`.
template <class ForEachRank, class RangeOf, class Visit>
[[nodiscard]] errc share_out(lane as, ForEachRank&& for_each_rank, RangeOf&& range_of,
                             Visit&& visit) noexcept {
  std::size_t all = 0;
  static_cast<void>(for_each_rank([&](rank_id rank) noexcept {
    const lane::range part = range_of(rank);
    all += part.end - part.begin;
    return errc::ok;
  }));
  const lane::range mine = as.share(all);
  std::size_t passed = 0;
  return for_each_rank([&](rank_id rank) noexcept {
    const lane::range part = range_of(rank);
    const std::size_t before = passed;
    passed += part.end - part.begin;
    const std::size_t begin = std::clamp(mine.begin, before, passed) - before;
    const std::size_t end = std::clamp(mine.end, before, passed) - before;
    return visit(rank, lane::range{part.begin + begin, part.begin + end});
  });
}

}  // namespace peerbus::moe
