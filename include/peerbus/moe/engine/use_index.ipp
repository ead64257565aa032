// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/engine/use_index.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE use_index::use_index(std::size_t expert_count, std::size_t most_uses)
    : starts_(expert_count + 1),
      // Not initialised, so that pages are committed only as rows arrive.
      uses_{std::make_unique_for_overwrite<row_use[]>(most_uses)},
      most_uses_{most_uses} {}

/// Calls `visit(e, use)` for each use of a row by a local expert `e`, in the order of rows and
/// slots. Whether a slot is used is as random as the routing. Therefore no branch depends on a
/// slot: the used slots of several rows are first collected, then visited.
template <class Visit>
void use_index::for_each_use(const recv_plan& arriving, const std::int32_t* experts,
                             std::size_t width, Visit&& visit) noexcept {
  constexpr std::uint32_t rows_at_once = 16;
  std::array<row_use, rows_at_once * max_top_k> used;
  for (const rank_id source : all_ranks{arriving.ranks()}) {
    const auto rows = arriving.from(0, source);
    for (std::uint32_t first = rows[0]; first < rows[1]; first += rows_at_once) {
      const std::uint32_t end = std::min(rows[1], first + rows_at_once);
      std::size_t count = 0;
      for (std::uint32_t row = first; row < end; ++row)
        for (std::uint32_t slot = 0; slot < width; ++slot) {
          used[count] = {row, slot};
          count += experts[row * width + slot] >= 0 ? 1U : 0U;
        }
      for (const row_use use : std::span{used}.first(count))
        visit(static_cast<std::size_t>(experts[use.row * width + use.slot]), use);
    }
  }
}

PEERBUS_INLINE void use_index::index(const recv_plan& arriving, const std::int32_t* experts,
                                     std::size_t width) noexcept {
  // starts_[e + 1] is first the number of uses of expert e, then the beginning of its uses, and
  // finally their end.
  std::fill(starts_.begin(), starts_.end(), 0U);
  for_each_use(arriving, experts, width, [&](std::size_t e, row_use) { ++starts_[e + 1]; });
  std::uint32_t begin_of_uses = 0;
  for (std::size_t e = 0; e + 1 < starts_.size(); ++e) {
    const std::uint32_t use_count = starts_[e + 1];
    starts_[e + 1] = begin_of_uses;
    begin_of_uses += use_count;
  }
  for_each_use(arriving, experts, width,
               [&](std::size_t e, row_use use) { uses_[starts_[e + 1]++] = use; });
}

}  // namespace peerbus::moe::detail
