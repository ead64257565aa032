// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdio>
#include <exception>
#include <string_view>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/bootstrap/rank_function.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus {

namespace detail {

/// Prints a line on stderr by one call, so that the lines of several ranks do not mix.
inline void print_line(std::string_view text) noexcept {
  std::fprintf(stderr, "peerbus: %.*s\n", static_cast<int>(text.size()), text.data());
}

inline void print_exception(rank_id rank, std::string_view what) noexcept {
  constexpr std::string_view prefix = "peerbus: ";  // Printed before the rank, not after it.
  if (what.substr(0, prefix.size()) == prefix) what.remove_prefix(prefix.size());
  std::fprintf(stderr, "peerbus: rank %zu: %.*s\n", rank.index(), static_cast<int>(what.size()),
               what.data());
}

/// Returns the exit status for `returned`. A process can only end with 0 to 255, and another value
/// must not become 0.
constexpr int exit_status(int returned) noexcept {
  return returned < 0 || returned > 255 ? 255 : returned;
}

/// The way in which a rank, or a part of its work, ended.
struct rank_end {
  int status = 0;
  rank_state state = rank_state::left;
};

/// Calls `f`, which returns a status, and reports an exception of `f` on stderr.
template <class F>
rank_end call_reporting(rank_id rank, F&& f) noexcept {
  rank_state state = rank_state::failed;
  try {
    return {f(), rank_state::left};
  } catch (const error& caught) {
    if (caught.code() == errc::peer_dead) state = rank_state::followed;
    print_exception(rank, caught.what());
  } catch (const std::exception& caught) {
    print_exception(rank, caught.what());
  } catch (...) {
    print_exception(rank, "an exception that is not a std::exception");
  }
  return {1, state};
}

/// Runs `body` as a rank and announces how it ended.
/// Returns: the exit status, 1 if `body` threw.
inline int run_rank(rank_body body, bootstrap& boot) noexcept {
  const rank_end end = call_reporting(boot.rank(), [&] { return exit_status(body(boot)); });
  boot.members()->announce(end.state);
  return end.status;
}

/// The largest number of ranks that one call starts in this process.
inline constexpr std::size_t most_started_ranks = 65535;

/// The names of the limits on the processes and threads of a user, for messages.
inline constexpr std::string_view limits_of_processes =
    " (see `ulimit -u`, and pids.max of the cgroup)";

/// Checks a number of ranks given to `function`.
/// Throws: `error` invalid_argument if `n` is 0 or above `most_started_ranks`.
inline void refuse_bad_world(std::size_t n, std::string_view function) {
  if (n == 0)
    throw error{errc::invalid_argument,
                concat("a world of 0 ranks was given to ", function, ", expected at least 1")};
  if (n > most_started_ranks)
    throw error{errc::invalid_argument, concat("a world of ", n, " ranks was given to ", function,
                                               ", expected at most ", most_started_ranks)};
}

}  // namespace detail
}  // namespace peerbus
