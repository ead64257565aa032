// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

/// The reason for which a collective of the bootstrap failed, before it becomes an exception. It is
/// sent between ranks, so that all of them throw the same error.
struct failure {
  errc code;
  std::string text;
};

/// Throws `why` as an `error`. If it is `peer_dead`, first records in `members` that this rank
/// follows another.
[[noreturn]] inline void throw_failure(const failure& why, const membership& members) {
  if (why.code == errc::peer_dead) members.note_peer_dead();
  throw error{why.code, why.text};
}

/// Refuses a collective in a child that the rank forked, because its messages would be taken for
/// messages of the rank.
/// Throws: `error` invalid_argument.
inline void refuse_child(const membership& members, std::string_view doing) {
  if (members.is_here()) return;
  throw error{errc::invalid_argument,
              concat("allgather for '", doing, "' in a child by fork of ", members.rank(),
                     "; expected a call of the rank itself, or of a group that the child made")};
}

/// Makes a `timed_out` failure that names the ranks which did not come, and their latest waits.
inline failure missing_ranks(std::string_view doing, const std::vector<rank_id>& missing,
                             const membership& members, deadline::clock::duration span) {
  std::string text = concat("allgather for '", doing, "': ", describe_ranks(missing), " of ",
                            members.size(), " did not come within ", describe_span(span));
  for (const rank_id peer : std::span{missing}.first(std::min(missing.size(), most_listed)))
    if (const auto seen = members.describe_last_seen(peer); !seen.empty())
      text += concat("; ", peer, " ", seen);
  return {errc::timed_out, std::move(text)};
}

/// Makes a `timed_out` failure for ranks that wait for each other, so that none of them can go on.
inline failure all_wait(std::string_view doing, const std::vector<rank_id>& missing,
                        std::size_t size) {
  return {errc::timed_out, concat("allgather for '", doing, "': ", describe_ranks(missing), " of ",
                                  size, " did not come, and all ranks wait")};
}

/// Makes a `peer_dead` failure. `gone` lists how ranks ended, such as "rank 3 died".
inline failure gone_ranks(std::string_view doing, std::string_view gone) {
  return {errc::peer_dead, concat("allgather for '", doing, "': ", gone)};
}

inline failure different_collectives(rank_id first_rank, std::string_view first_doing,
                                     rank_id other_rank, std::string_view other_doing) {
  return {errc::mismatch, concat("ranks called different collectives: ", first_rank,
                                 " an allgather for '", first_doing, "', ", other_rank,
                                 " one for '", other_doing, "'; expected the same on all")};
}

inline failure too_many_bytes(std::string_view doing, rank_id rank, std::size_t bytes,
                              std::size_t most) {
  return {errc::invalid_argument, concat("allgather for '", doing, "': ", rank, " gave ", bytes,
                                         " bytes, expected at most ", most)};
}

inline failure no_descriptors(std::string_view doing, rank_id rank, std::size_t size) {
  return {errc::system, concat("allgather for '", doing, "': ", rank, " has no file descriptors ",
                               "left for what ", size, " ranks give (see `ulimit -n`)")};
}

inline failure cannot_carry_fd(std::string_view doing, rank_id rank) {
  return {errc::unsupported,
          concat("allgather for '", doing, "': ", rank, " gave a file descriptor, which cannot ",
                 "travel to another host; expected planes, verbs or fabric in place of ",
                 "unified_bus, a bootstrap of one host (environment_bootstrap) in place of ",
                 "tcp_bootstrap, or a subgroup of its near ranks")};
}

inline failure poisoned_by(std::string_view doing, std::string_view earlier) {
  return {errc::poisoned, concat("allgather for '", doing, "' after one that failed: ", earlier)};
}

/// Describes how a rank ended after its connection closed. Waits up to a second, because a dying
/// process closes its sockets shortly before it exits.
inline std::string describe_closed(rank_id peer, const membership& members) {
  if (members.state(peer) == rank_state::running &&
      !members.ends_within(peer, std::chrono::milliseconds{1000}))
    return concat(peer, " closed its connection");
  return members.fate(peer);
}

}  // namespace peerbus::detail
