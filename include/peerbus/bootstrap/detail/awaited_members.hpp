// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// The source from which a rank of a rendezvous learns which of the expected ranks have ended.
/// Empty if nothing connects the ranks yet.
class awaited_members {
 public:
  /// The time that members have to come after rank 0 of the parent has ended.
  static constexpr std::chrono::seconds most_time_unseen{10};

  awaited_members() = default;
  /// Makes the members of a subgroup, as their parent sees them. `in_parent` has their numbers in
  /// the parent, in the order of their numbers in the subgroup.
  ///
  /// Rank 0 of the parent reports the ranks that have ended. Once rank 0 has ended itself, a member
  /// may end unseen. All members have been called to the rendezvous by then, so a member counts as
  /// ended `time_unseen` after the end of rank 0 has been seen.
  awaited_members(std::shared_ptr<const membership> parent, std::vector<rank_id> in_parent,
                  deadline::clock::duration time_unseen = most_time_unseen)
      : has_ended_{[parent = std::move(parent), ranks = std::move(in_parent), time_unseen,
                    unseen_until = std::optional<deadline>{}](rank_id member) mutable {
          if (parent->state(ranks[member.index()]) != rank_state::running) return true;
          if (parent->state(rank_id{0}) == rank_state::running) return false;
          if (!unseen_until) unseen_until = deadline::after(time_unseen);
          return unseen_until->expired();
        }} {}
  /// Makes members of a rendezvous for which `has_ended(member)` returns whether `member` has
  /// ended.
  explicit awaited_members(std::function<bool(rank_id member)> has_ended)
      : has_ended_{std::move(has_ended)} {}

  /// Returns whether the end of a member can be seen.
  [[nodiscard]] bool are_watched() const noexcept { return static_cast<bool>(has_ended_); }
  /// Returns whether `member`, a number in the rendezvous, has ended or must be taken as ended.
  /// Cost: at most two system calls.
  [[nodiscard]] bool has_ended(rank_id member) { return are_watched() && has_ended_(member); }

 private:
  std::function<bool(rank_id member)> has_ended_;
};

}  // namespace peerbus::detail
