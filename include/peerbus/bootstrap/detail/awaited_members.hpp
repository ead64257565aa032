// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// The members of a subgroup, as their parent sees them while they are on their way to the
/// subgroup's meeting. In a meeting without a parent there is nothing to see.
class awaited_members {
 public:
  awaited_members() = default;
  /// `ranks` are the members' numbers in the parent, in the order of their numbers in the subgroup.
  awaited_members(std::shared_ptr<const membership> parent, std::vector<rank_id> ranks)
      : parent_{std::move(parent)}, ranks_{std::move(ranks)} {}

  /// Returns whether there is a parent that reports how members end.
  [[nodiscard]] bool are_watched() const noexcept { return parent_ != nullptr; }
  /// Returns whether `member`, a number in the subgroup, has ended. Cost: at most one system call.
  [[nodiscard]] bool has_ended(rank_id member) const noexcept {
    return are_watched() && parent_->state(ranks_[member.index()]) != rank_state::running;
  }

 private:
  std::shared_ptr<const membership> parent_;
  std::vector<rank_id> ranks_;
};

}  // namespace peerbus::detail
