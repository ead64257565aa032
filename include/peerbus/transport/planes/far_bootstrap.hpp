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

/// The bootstrap of the far plane: the bootstrap of all ranks as a separate object. Until `finish`,
/// a rank whose far plane cannot be made takes part in the next allgather of the other ranks, for
/// any purpose, and tells them the reason. So no rank waits for a rank that has given up.
class far_bootstrap final : public bootstrap {
 public:
  /// Makes the bootstrap over `whole`, which outlives it. Does not communicate.
  explicit far_bootstrap(bootstrap& whole);

  /// Ends the making of the far plane. Collective. `objection` is the error for which this rank has
  /// no far plane. Returns if no rank has an objection.
  /// Cost: one allgather, unless the ranks know of an objection already.
  /// Throws, on all ranks: `agreed_error` with the rank's own objection, or otherwise with the
  /// objection of the lowest rank that has one; or as `bootstrap::allgather`.
  void finish(const std::optional<error>& objection, deadline until);

  [[nodiscard]] bool passes_descriptors() const noexcept override {
    return whole_->passes_descriptors();
  }
  [[nodiscard]] address_space addresses() const noexcept override { return whole_->addresses(); }
  [[nodiscard]] PEERBUS_INLINE std::vector<contribution> allgather(contribution own_part,
                                                                   deadline until,
                                                                   std::string_view doing) override;

 private:
  /// Carries out an allgather that also compares `doing`, because all allgathers are the same call
  /// to `whole_`.
  [[nodiscard]] std::vector<contribution> gather(contribution own_part,
                                                 const std::optional<error>& objection,
                                                 deadline until, std::string_view doing);
  [[nodiscard]] PEERBUS_INLINE std::unique_ptr<bootstrap> make_subgroup(
      const std::vector<rank_id>& ranks, rank_id member, deadline until) override;

  bootstrap* whole_;
  bool is_finished_ = false;
  std::optional<agreed_error> end_;  ///< the objection that all ranks know
};

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/transport/planes/far_bootstrap.ipp>  // IWYU pragma: keep
#endif
