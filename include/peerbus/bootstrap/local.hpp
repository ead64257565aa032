// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/rank_function.hpp>
#include <peerbus/core/compiled.hpp>

namespace peerbus {

struct run_options {
  /// Rank i runs on the i-th core that this process may use, counted round and round.
  bool pin = false;
  /// How long the other ranks may go on after the first one died or threw, before they are killed.
  std::chrono::milliseconds grace{10'000};
};

namespace detail {

/// `run_local` for a function of any type.
[[nodiscard]] int run_processes(std::size_t n, rank_body body, const run_options& options);

}  // namespace detail

/// Runs `f(bootstrap&)` as `n` ranks, each a forked child process of its own copy of `f` and of
/// everything else. A rank ends with what `f` returns (0 for void; what does not fit into 0 to 255
/// counts as 255), or with 1 and a line on stderr if it throws. If a rank throws or dies, the waits
/// of the others end with peer_dead, and what still runs after `options.grace` is killed; a death
/// is reported on stderr.
/// Nothing outlives the call, nor this process if it is killed: the children die with the thread
/// that called. There is nothing in the file system to be left behind.
/// Returns: the worst exit status of all ranks, 128 + signal for one that was killed.
/// Threads: only the calling thread exists in the ranks; call it before starting others, or make
/// sure that `f` needs no lock that another thread may hold.
/// Throws: `error` invalid_argument if `n` is 0 or SIGCHLD is ignored, system if not all processes
/// could be started (those that were are gone then).
template <rank_function F>
[[nodiscard]] int run_local(std::size_t n, F f, run_options options = {}) {
  return detail::run_processes(n, detail::returning_status(f), options);
}

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/impl/local.hpp>  // IWYU pragma: keep
#endif
