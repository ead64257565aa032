// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>

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
      joined answer = rendezvous_joiner{place, ours}.join(1);
      return meet_running_group(std::move(answer), rank_id{settings.rank}, settings.size,
                                until_admitted(until));
    } catch (const error& problem) {
      // Otherwise the member that listened is gone, or in trouble, or another rank ended meanwhile.
      const bool is_refused =
          problem.code() == errc::mismatch || problem.code() == errc::invalid_argument;
      if (is_refused || until.expired()) throw;
    }
    poll_for({}, until, poll_pause);
  }
}

PEERBUS_INLINE deadline until_admitted(deadline until) {
  return later(until, deadline::after(std::chrono::seconds{30}));
}

PEERBUS_INLINE void await_admission(bootstrap& boot, deadline until) {
  (void)boot.allgather({}, until, "admission");
}

}  // namespace peerbus::detail
