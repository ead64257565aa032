// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// The bootstrap of the far plane: that of all ranks, under another object. Until `finish`, a rank
/// whose far plane cannot be made takes part in the next allgather of the other ranks, whichever it
/// is, and tells them the reason. So no rank waits for a rank that has given up.
class far_bootstrap final : public bootstrap {
 public:
  /// Makes the bootstrap over `whole`, which outlives it. Does not communicate.
  explicit far_bootstrap(bootstrap& whole);

  /// Collective: returns if no rank has an `objection`, the error for which its far plane cannot
  /// be.
  /// Cost: one allgather, unless the ranks know of an objection already.
  /// Throws, on all ranks: `agreed_error` with the rank's own objection, or else with that of the
  /// lowest rank that has one; or as `bootstrap::allgather`.
  void finish(const std::optional<error>& objection, deadline until);

  [[nodiscard]] bool passes_descriptors() const noexcept override {
    return whole_->passes_descriptors();
  }
  [[nodiscard]] address_space addresses() const noexcept override { return whole_->addresses(); }
  [[nodiscard]] PEERBUS_INLINE std::vector<contribution> allgather(contribution own_part,
                                                                   deadline until,
                                                                   std::string_view doing) override;

 private:
  /// An allgather that also compares `doing`, as all of them are the same call to `whole_`.
  [[nodiscard]] std::vector<contribution> gather(contribution own_part,
                                                 const std::optional<error>& objection,
                                                 deadline until, std::string_view doing);
  [[nodiscard]] PEERBUS_INLINE std::unique_ptr<bootstrap> make_subgroup(
      const std::vector<rank_id>& ranks, rank_id member, deadline until) override;

  bootstrap* whole_;
  bool is_finished_ = false;
  std::optional<agreed_error> end_;  ///< the objection that all ranks know of
};

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/transport/planes/far_bootstrap.ipp>  // IWYU pragma: keep
#endif
