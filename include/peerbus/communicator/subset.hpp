// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// The bootstrap of some ranks of a group, which are renumbered. It has no connections of its own:
/// its allgather calls that of the whole group and returns the contributions of the subset.
/// Therefore all ranks of the whole group must call it together, each for its own subset.
class subset_bootstrap final : public bootstrap {
 public:
  /// Makes the bootstrap of `members`, ranks of `whole` that must include the caller. Does not
  /// communicate.
  subset_bootstrap(bootstrap& whole, std::vector<rank_id> members);

  /// Returns the ranks of the subset in the whole group, by their number in the subset.
  [[nodiscard]] std::span<const rank_id> ranks_of_whole() const noexcept { return ranks_; }

  [[nodiscard]] bool passes_descriptors() const noexcept override {
    return whole_->passes_descriptors();
  }
  [[nodiscard]] address_space addresses() const noexcept override { return whole_->addresses(); }
  [[nodiscard]] PEERBUS_INLINE std::vector<contribution> allgather(contribution own_part,
                                                                   deadline until,
                                                                   std::string_view doing) override;

 private:
  [[nodiscard]] PEERBUS_INLINE std::unique_ptr<bootstrap> make_subgroup(
      const std::vector<rank_id>& ranks, rank_id member, deadline until) override;

  bootstrap* whole_;
  std::vector<rank_id> ranks_;
};

/// A group of some ranks of a communicator, which are renumbered. A failure of the subset makes the
/// whole communicator unusable. Ask the whole communicator whether it is usable.
class subset_group final : public rank_group {
 public:
  /// Makes the group of the ranks of `boot`. `whole` and `boot` must outlive it. `name` is the name
  /// of these ranks in errors, a literal. Does not communicate.
  subset_group(rank_group& whole, subset_bootstrap& boot, std::string_view name)
      : rank_group{boot, {}}, whole_{&whole}, boot_{&boot}, name_{name} {}

  /// Returns the ranks of the subset in the whole group, by their number in the subset.
  [[nodiscard]] std::span<const rank_id> ranks_of_whole() const noexcept {
    return boot_->ranks_of_whole();
  }
  /// Returns the number in the whole group of `rank`, a rank of the subset.
  [[nodiscard]] rank_id in_whole(rank_id rank) const noexcept {
    return ranks_of_whole()[rank.index()];
  }

  [[nodiscard]] std::string missing() const override { return whole_->missing(); }

 private:
  /// Makes the whole communicator unusable, and returns the text of the error. The text names the
  /// ranks of the subset, because `reason` may contain their numbers.
  PEERBUS_INLINE std::string fail_text(std::string_view reason) override;

  rank_group* whole_;
  subset_bootstrap* boot_;
  std::string_view name_;
};

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/communicator/subset.ipp>  // IWYU pragma: keep
#endif
