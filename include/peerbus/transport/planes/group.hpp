// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/planes/options.hpp>

namespace peerbus::detail {

/// The ranks that are near the caller, and the bootstrap among them.
class plane_group {
 public:
  /// Finds the near ranks, and makes the bootstrap among them. Collective.
  /// Cost: one allgather, and one subgroup unless all ranks are near each other and `boot` passes
  /// descriptors.
  /// Throws, on all ranks: `agreed_error` mismatch if some ranks name their group and others do
  /// not, or as `bootstrap::subgroup`. But if a near rank dies meanwhile, `boot()` throws, and
  /// `agree_on_near` tells the other ranks, which do not notice the death here.
  plane_group(bootstrap& boot, const planes_options& options, deadline until);

  /// Returns the near ranks in ascending order, the caller included.
  [[nodiscard]] const std::vector<rank_id>& members() const noexcept { return members_; }
  /// Returns whether all ranks are near each other. The same on all ranks.
  [[nodiscard]] bool is_everyone() const noexcept { return members_.size() == numbers_.size(); }
  /// Returns the bootstrap of the near ranks.
  /// Throws: `error` peer_dead if the near ranks did not meet.
  [[nodiscard]] bootstrap& boot() const {
    if (unmet_) throw error{*unmet_};
    return subgroup_ == nullptr ? *boot_ : *subgroup_;
  }
  /// Returns the number of ranks, near and far.
  [[nodiscard]] std::size_t all() const noexcept { return numbers_.size(); }
  /// Returns whether `peer`, an existing rank, is near.
  [[nodiscard]] bool is_near(rank_id peer) const noexcept { return numbers_[peer.index()] != none; }
  /// Returns the number of `peer`, a near rank, among the near ranks.
  [[nodiscard]] rank_id number_of(rank_id peer) const noexcept {
    return rank_id{std::size_t{numbers_[peer.index()]}};
  }
  /// Agrees with all ranks whether near planes exist. Collective over all ranks. `objection` is the
  /// error for which this rank has no near plane. It ends the bootstrap of the near ranks, so that
  /// none of them waits in it for a rank that has given up. Returns if no rank has an objection.
  /// Cost: one allgather.
  /// Throws, on all ranks: `agreed_error` with the objection of the lowest rank whose objection is
  /// not only that the bootstrap ended, with the group's name and ranks; or as
  /// `bootstrap::allgather`.
  void agree_on_near(const std::optional<error>& objection, deadline until);

 private:
  /// Returns `problem` with the group's name and ranks.
  [[nodiscard]] error explain(const error& problem) const;

  static constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();

  bootstrap* boot_;
  std::string name_;
  std::vector<rank_id> members_;
  std::vector<std::uint32_t> numbers_;  ///< each rank's number among the members, or `none`
  std::unique_ptr<bootstrap> subgroup_;
  std::optional<error> unmet_;  ///< the reason why the near ranks did not meet
};

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/transport/planes/group.ipp>  // IWYU pragma: keep
#endif
