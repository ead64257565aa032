// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/path/served_ranks.hpp>

namespace peerbus::moe {

/// Calls `visit(rank, range)` for each rank, with the `caller`'s share of the items for that rank.
/// All items are divided evenly among the lanes, in the order in which they leave. A range may be
/// empty. The ranks are those of `served`, in its order. `range_of(rank)` returns the items for a
/// rank.
/// Returns: ok, or the first failure of `visit`.
template <class RangeOf, class Visit>
[[nodiscard]] errc share_out(lane caller, const served_ranks& served, RangeOf&& range_of,
                             Visit&& visit) noexcept {
  std::size_t item_count = 0;
  static_cast<void>(served.for_each([&](rank_id rank) noexcept {
    const lane::range part = range_of(rank);
    item_count += part.end - part.begin;
    return errc::ok;
  }));
  const lane::range share = caller.share(item_count);
  std::size_t passed = 0;
  return served.for_each([&](rank_id rank) noexcept {
    const lane::range part = range_of(rank);
    const std::size_t first = passed;
    passed += part.end - part.begin;
    const std::size_t begin = std::clamp(share.begin, first, passed) - first;
    const std::size_t end = std::clamp(share.end, first, passed) - first;
    return visit(rank, lane::range{part.begin + begin, part.begin + end});
  });
}

}  // namespace peerbus::moe
