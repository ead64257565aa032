// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/frame.hpp>
#include <peerbus/bootstrap/detail/rendezvous.hpp>
#include <peerbus/bootstrap/detail/spoke.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus::detail {

/// What the meeting gives to a rank other than 0.
struct joined {
  unique_fd hub;
  unique_fd states;  ///< the file of the state page
};

/// Connects to rank 0, which may come later, unless it `was_there` before.
/// Throws: `error` timed_out, peer_dead, system.
inline unique_fd connect_to_rank_0(const launch_settings& settings, deadline until,
                                   deadline::clock::duration span, bool was_there = false) {
  const meeting_point place{settings};
  for (std::chrono::milliseconds pause{1};;) {
    unique_fd socket = stream_socket();
    if (::connect(socket.get(), place.get(), place.bytes) == 0) {
      const auto who = peer_of(socket);
      if (!who || who->uid != ::geteuid())
        throw error{errc::system,
                    concat("the meeting point ", describe_place(settings), " belongs to user ",
                           who ? std::to_string(who->uid) : "unknown", ", expected ", ::geteuid(),
                           ": give another MASTER_PORT")};
      return socket;
    }
    // EAGAIN: rank 0 has more callers in its queue than it holds.
    if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR)
      throw system_failure(concat("connecting to rank 0 at ", describe_place(settings)), errno);
    if (was_there && errno == ECONNREFUSED)
      throw error{errc::peer_dead,
                  concat("rank 0 of ", settings.size, " hung up on rank ", settings.rank, " at ",
                         describe_place(settings), ": it died, or its group was complete already")};
    if (until.expired())
      throw error{errc::timed_out,
                  concat("rank 0 of ", settings.size, " did not come to ", describe_place(settings),
                         " within ", describe_span(span), ", where rank ", settings.rank,
                         " waited for it (all ranks must be on one host, and run by one user)")};
    // There is nothing to wait on for a name that does not exist yet.
    std::vector<pollfd> nothing;
    poll_for(nothing, until, pause);
    pause = std::min(2 * pause, std::chrono::milliseconds{20});
  }
}

/// Returns: empty if rank 0 hung up without a word.
/// Throws: `error` what rank 0 refused with, timed_out, system.
inline std::optional<joined> await_welcome(unique_fd hub, const launch_settings& settings,
                                           deadline until, deadline::clock::duration span) {
  const hello mine{.rank = static_cast<std::uint32_t>(settings.rank), .size = settings.size};
  // A fresh socket takes these few bytes whole.
  if (::send(hub.get(), &mine, sizeof mine, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof mine) &&
      errno != EPIPE && errno != ECONNRESET)
    throw system_failure(concat("greeting rank 0 at ", describe_place(settings)), errno);
  frame_reader reader{0, 1};
  std::vector<pollfd> entries{{hub.get(), POLLIN, 0}};
  // Rank 0 gives up at `until`, and says for whom it waited.
  const auto left = until.remaining();
  constexpr std::chrono::seconds head_start{1};
  const auto patience = deadline::after(
      left > deadline::clock::duration::max() - head_start ? left : left + head_start);
  for (;;) {
    const auto now = reader.step(hub.get());
    if (now == frame_reader::status::done) break;
    if (now == frame_reader::status::closed) return std::nullopt;
    if (now == frame_reader::status::no_descriptors)
      throw system_failure("taking the page of rank states from rank 0", EMFILE);
    if (now == frame_reader::status::malformed)
      throw error{errc::system, concat("what answers at ", describe_place(settings),
                                       " does not speak as rank 0 of a group should: give another "
                                       "MASTER_PORT")};
    if (patience.expired())
      throw error{errc::timed_out,
                  concat("rank 0 of ", settings.size, " at ", describe_place(settings),
                         " did not answer within ", describe_span(span))};
    poll_for(entries, patience, std::chrono::milliseconds{1000});
  }
  frame answer = reader.take();
  if (answer.header.kind == static_cast<std::uint32_t>(frame_kind::refuse)) {
    const failure why = told_failure(answer);
    throw error{why.code, why.text};
  }
  if (answer.header.kind != static_cast<std::uint32_t>(frame_kind::welcome) ||
      answer.fds.size() != 1)
    throw error{errc::system,
                concat("rank 0 at ", describe_place(settings), " sent a malformed welcome")};
  return joined{std::move(hub), std::move(answer.fds.front())};
}

/// Meets rank 0, as any other rank.
/// Throws: `error` what rank 0 refused with, peer_dead, timed_out, system.
inline joined join(const launch_settings& settings, deadline until) {
  const auto span = until.remaining();
  for (bool again = false;; again = true) {
    unique_fd hub = connect_to_rank_0(settings, until, span, again);
    if (auto met = await_welcome(std::move(hub), settings, until, span)) return std::move(*met);
    if (until.expired())
      throw error{errc::timed_out,
                  concat("rank 0 of ", settings.size, " at ", describe_place(settings),
                         " hung up on rank ", settings.rank, " for ", describe_span(span))};
    // Among too many callers it may have hung up on this one before it heard it. If it has died
    // instead, the next call shows that at once.
    std::vector<pollfd> nothing;
    poll_for(nothing, until, std::chrono::milliseconds{1});
  }
}

}  // namespace peerbus::detail
