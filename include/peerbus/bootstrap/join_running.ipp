// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>

#include <peerbus/bootstrap/detail/admission_notice.hpp>
#include <peerbus/bootstrap/detail/admission_place.hpp>
#include <peerbus/bootstrap/detail/awaited_members.hpp>
#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/local_admission_place.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/rendezvous.hpp>
#include <peerbus/bootstrap/detail/rendezvous_joiner.hpp>
#include <peerbus/bootstrap/join_running.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

PEERBUS_INLINE std::unique_ptr<bootstrap> call_running_group(admission_place& place,
                                                             std::size_t slot, std::size_t capacity,
                                                             deadline until) {
  rendezvous ours{slot, capacity, until};
  ours.host = "a running group";
  for (;;) {
    try {
      const joined answer = rendezvous_joiner{place.calls(), ours}.join(0);
      const connection& host = answer.connections[0];
      return admission_notice::decode(answer.body)
          .meet(place, rank_id{slot}, capacity,
                awaited_members{[&host](rank_id) { return host.has_ended(); }},
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

PEERBUS_INLINE std::unique_ptr<bootstrap> call_running_group(const launch_settings& settings,
                                                             deadline until) {
  if (settings.rank >= settings.size)
    throw error{errc::invalid_argument,
                concat("join_running: rank ", settings.rank, " of ", settings.size,
                       " was given, expected a rank below the size")};
  local_admission_place place{settings};
  return call_running_group(place, settings.rank, settings.size, until);
}

PEERBUS_INLINE deadline until_admitted(deadline until) {
  return later(until, deadline::after(std::chrono::seconds{30}));
}

PEERBUS_INLINE void await_admission(bootstrap& boot, deadline until) {
  (void)boot.allgather({}, until, "admission");
}

}  // namespace peerbus::detail
