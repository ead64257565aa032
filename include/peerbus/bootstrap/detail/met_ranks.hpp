// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/awaited_members.hpp>
#include <peerbus/bootstrap/detail/star.hpp>
#include <peerbus/bootstrap/detail/state_page.hpp>
#include <peerbus/bootstrap/launch_settings.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// The connections and the page of states of a rank that has met the other ranks of this host.
struct met_ranks {
  state_page states;
  std::unique_ptr<star> connections;

  /// Collective: meets the other ranks.
  /// Throws: `error` as the constructor of `environment_bootstrap`.
  static met_ranks at(const launch_settings& settings, deadline until,
                      const awaited_members& members = {});
};

/// Collective: makes the bootstrap of `count` processes of this host, in which the caller is
/// `member`. They meet at the place `name`, which no other group may have. If `members` reports
/// that a rank has ended before it came, the call fails at once.
/// Throws: `error` as the constructor of `environment_bootstrap`.
std::unique_ptr<bootstrap> join_on_this_host(std::string name, rank_id member, std::size_t count,
                                             deadline until, const awaited_members& members);

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/detail/met_ranks.ipp>  // IWYU pragma: keep
#endif
