// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/plan/send_plan.hpp>

namespace peerbus::moe {

/// The ranks that a path serves.
class served_ranks {
 public:
  /// Finds the ranks for which `served(rank)` is true. Keeps a reference to `group`.
  template <class Served>
  served_ranks(const rank_group& group, Served&& served) : group_{&group} {
    for (const rank_id rank : group.ranks()) peers_.push_back(served(rank) ? 1 : 0);
    std::uint8_t& own = peers_[group.rank().index()];
    keeps_own_ = own != 0;
    own = 0;
    is_empty_ = !keeps_own_ && std::find(peers_.begin(), peers_.end(), 1) == peers_.end();
  }

  /// Returns whether the path serves no rank.
  [[nodiscard]] bool is_empty() const noexcept { return is_empty_; }
  /// Returns a number for each rank, 1 for a peer that is served, else 0: [ranks]. 0 for this rank.
  [[nodiscard]] std::span<const std::uint8_t> peers() const noexcept {
    return {peers_.data(), peers_.size()};
  }
  /// Returns whether the path carries the copy with this place.
  [[nodiscard]] bool carries(const row_place& place) const noexcept {
    if (!place.sent()) return false;
    return peers_[place.rank] != 0 || (keeps_own_ && rank_id{place.rank} == group_->rank());
  }
  /// Returns whether the path carries any copy of the token with these places.
  [[nodiscard]] bool carry_any(std::span<const row_place> places) const noexcept {
    for (const row_place& place : places)
      if (carries(place)) return true;
    return false;
  }

  /// Calls `call(rank)` for each rank that is served, until a call fails. This rank is last, so
  /// that it stores its own rows while the puts to the peers are in flight.
  /// Returns: ok, or the code of the call that failed.
  template <class Call>
  [[nodiscard]] errc for_each(Call&& call) const noexcept {
    for (const rank_id peer : group_->peers())
      if (peers_[peer.index()] != 0)
        if (const errc code = call(peer); code != errc::ok) return code;
    return keeps_own_ ? call(group_->rank()) : errc::ok;
  }

 private:
  const rank_group* group_;
  std::vector<std::uint8_t> peers_;
  bool keeps_own_ = false;
  bool is_empty_ = true;
};

}  // namespace peerbus::moe
