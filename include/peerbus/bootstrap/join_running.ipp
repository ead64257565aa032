// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <peerbus/bootstrap/detail/local_rendezvous.hpp>
#include <peerbus/bootstrap/detail/newcomers.hpp>
#include <peerbus/bootstrap/detail/rendezvous.hpp>
#include <peerbus/bootstrap/detail/rendezvous_joiner.hpp>
#include <peerbus/bootstrap/detail/running_group.hpp>
#include <peerbus/bootstrap/join_running.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

PEERBUS_INLINE std::unique_ptr<bootstrap> call_running_group(const launch_settings& settings,
                                                             deadline until) {
  if (settings.rank >= settings.size)
    throw error{errc::invalid_argument,
                concat("join_running: rank ", settings.rank, " of ", settings.size,
                       " was given, expected a rank below the size")};
  local_rendezvous_place place{place_to_join(settings)};
  rendezvous ours{settings.rank, settings.size, until};
  ours.host = "a running group";
  for (;;) {
    try {
      return meet_running_group(rendezvous_joiner{place, ours}.join(1), rank_id{settings.rank},
                                settings.size, until);
    } catch (const error& problem) {
      // The member that listened is gone, or another rank ended while the ranks met.
      const bool may_come = problem.code() == errc::peer_dead || problem.code() == errc::timed_out;
      if (!may_come || until.expired()) throw;
    }
    poll_for({}, until, poll_pause);
  }
}

PEERBUS_INLINE void await_admission(bootstrap& boot, deadline until) {
  (void)boot.allgather({}, until, "admission");
}

}  // namespace peerbus::detail
