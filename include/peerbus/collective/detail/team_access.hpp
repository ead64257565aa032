// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string_view>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/private_reads.hpp>
#include <peerbus/collective/detail/way_trials.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/lane_pool.hpp>

namespace peerbus::collective::detail {

/// The parts of a team that an operation uses before its call begins.
struct team_access {
  /// Checks that the team can begin an operation.
  /// Throws: `error` poisoned; view_changed; invalid_argument if an operation of the team is
  /// between its halves.
  static void require_ready(const team& team, std::string_view operation);

  ///@{
  /// Returns the table of a variable form: the parts that this rank sends to each rank, or receives
  /// from it. An operation fills the tables before its call begins.
  [[nodiscard]] static std::span<byte_range> sends(team& team) noexcept {
    return team.pages_->sends();
  }
  [[nodiscard]] static std::span<byte_range> receives(team& team) noexcept {
    return team.pages_->receives();
  }
  ///@}
  /// Returns room for one pointer per rank and one more.
  [[nodiscard]] static auto sources(team& team) noexcept { return team.pages_->sources(); }
  /// Returns the reads of operands in private memory.
  [[nodiscard]] static const private_reads& reads(const team& team) noexcept {
    return team.private_;
  }
  [[nodiscard]] static rank_group& communicator(team& team) noexcept {
    return team.pages_->communicator();
  }
  /// Returns the lanes that carry out operations of the team.
  [[nodiscard]] static peerbus::detail::lane_pool& pool(team& team) noexcept { return team.pool_; }

  /// Returns the trial of a call whose algorithm is found by trial. `all_reduce` and
  /// `all_reduce_add` share trials.
  [[nodiscard]] static way_trials::running trial_of(team& team, const request& given) noexcept;
  ///@{
  /// Returns the algorithm of the operation. Ranks with different algorithms make different calls.
  [[nodiscard]] static algorithm algorithm_of_all_reduce(const team& team, const request& given,
                                                         const short_text<8>& reduction) noexcept;
  [[nodiscard]] static algorithm algorithm_of_reduce_scatter(
      const team& team, const request& given, const short_text<8>& reduction) noexcept;
  ///@}

 private:
  [[noreturn]] static void throw_pending(const team& team, std::string_view operation);
};

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/team_access.ipp>  // IWYU pragma: keep
#endif
