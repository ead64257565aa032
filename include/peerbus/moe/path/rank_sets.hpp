// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <peerbus/core/rank.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe {

/// The views of the batch sets of all ranks. They are empty for ranks that loads and stores of this
/// rank do not reach.
class rank_sets {
 public:
  /// Makes the views of `group_size` ranks. `part_of(rank)` returns the start of that rank's part
  /// of the window, or nullptr. `map` outlives the views.
  template <class PartOf>
  rank_sets(const memory_map& map, std::size_t group_size, PartOf&& part_of) : ranks_{group_size} {
    views_.reserve(map.in_flight * group_size);
    for (std::size_t set = 0; set < map.in_flight; ++set)
      for (const rank_id rank : all_ranks{group_size}) views_.emplace_back(map, part_of(rank), set);
  }

  /// Returns batch set `set` at each rank: [ranks].
  [[nodiscard]] std::span<const set_view> of(std::size_t set) const noexcept {
    return {views_.data() + set * ranks_, ranks_};
  }

 private:
  std::size_t ranks_;
  std::vector<set_view> views_;  ///< [in_flight][ranks]
};

}  // namespace peerbus::moe
