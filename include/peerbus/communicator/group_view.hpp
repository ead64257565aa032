// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/core/rank.hpp>

namespace peerbus {

/// The ranks that take part in the operations of a group. View 0 has all ranks. Each later view has
/// fewer ranks, which agree on it (`communicator::continue_without_the_dead`). Ranks keep their
/// numbers. A rank may miss a view in which no operation was completed, so view numbers may be
/// skipped. Ranks in a view of the same number have the same view, unless other ranks have excluded
/// one of them.
class group_view {
 public:
  /// Makes view 0 of `rank_count` ranks.
  explicit group_view(std::size_t rank_count)
      : group_view{0, rank_count, std::vector<bool>(rank_count)} {}

  /// Makes view `number` of the ranks, of `rank_count`, that are not `gone`: [ranks].
  group_view(std::uint64_t number, std::size_t rank_count, std::vector<bool> gone)
      : number_{number}, gone_{std::move(gone)} {
    for (const rank_id rank : all_ranks{rank_count})
      if (!gone_[rank.index()]) members_.push_back(rank);
  }

  /// Returns the number of the view.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  /// Returns the ranks that take part, in ascending order, with the caller.
  [[nodiscard]] std::span<const rank_id> members() const noexcept { return members_; }
  /// Returns the index of `member` in `members()`.
  [[nodiscard]] std::size_t place_of(rank_id member) const noexcept {
    return static_cast<std::size_t>(std::lower_bound(members_.begin(), members_.end(), member) -
                                    members_.begin());
  }
  /// Returns whether `rank` takes part. It must be a rank of the group.
  [[nodiscard]] bool contains(rank_id rank) const noexcept { return !gone_[rank.index()]; }
  /// Returns, for each rank of the group, whether it no longer takes part: [ranks].
  [[nodiscard]] const std::vector<bool>& gone() const noexcept { return gone_; }

 private:
  std::uint64_t number_;
  std::vector<bool> gone_;
  std::vector<rank_id> members_;
};

}  // namespace peerbus
