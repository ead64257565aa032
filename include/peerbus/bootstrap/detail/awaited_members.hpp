// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// The members of a subgroup, as their parent sees them while they are on their way to the
/// subgroup's rendezvous. In a rendezvous without a parent there is nothing to see.
///
/// Rank 0 of the parent passes on who has ended. Once it has ended itself, a member may end unseen.
/// All members are on their way by then, so they are awaited for a limited time only.
class awaited_members {
 public:
  /// The time that members have to come after rank 0 of the parent has ended.
  static constexpr std::chrono::seconds most_time_unseen{10};

  awaited_members() = default;
  /// `in_parent` are the members' numbers in the parent, in the order of their numbers in the
  /// subgroup.
  awaited_members(std::shared_ptr<const membership> parent, std::vector<rank_id> in_parent,
                  deadline::clock::duration time_unseen = most_time_unseen)
      : parent_{std::move(parent)}, ranks_{std::move(in_parent)}, time_unseen_{time_unseen} {}

  /// Returns whether there is a parent that reports how members end.
  [[nodiscard]] bool are_watched() const noexcept { return parent_ != nullptr; }
  /// Returns whether `member`, a number in the subgroup, has ended, or must be taken to have ended.
  /// Cost: at most two system calls.
  [[nodiscard]] bool has_ended(rank_id member) noexcept {
    if (!are_watched()) return false;
    if (parent_->state(ranks_[member.index()]) != rank_state::running) return true;
    if (parent_->state(rank_id{0}) == rank_state::running) return false;
    if (!unseen_until_) unseen_until_ = deadline::after(time_unseen_);
    return unseen_until_->expired();
  }

 private:
  std::shared_ptr<const membership> parent_;
  std::vector<rank_id> ranks_;
  deadline::clock::duration time_unseen_{};
  std::optional<deadline> unseen_until_;
};

}  // namespace peerbus::detail
