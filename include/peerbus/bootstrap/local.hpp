// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/rank_function.hpp>
#include <peerbus/core/compiled.hpp>

namespace peerbus {

/// Options of `run_local`.
struct run_options {
  /// Pins rank i to the i-th core that this process may use. If there are more ranks than cores,
  /// the count starts again at the first core.
  bool pin = false;
  /// The time that the other ranks have after a rank died or threw. They must end, or go on without
  /// that rank (`communicator::continue_without_the_dead`). Ranks that do neither are killed.
  std::chrono::milliseconds grace{10'000};
};

namespace detail {

/// Implements `run_local` for a rank function whose type is erased.
[[nodiscard]] int run_processes(std::size_t n, rank_body body, const run_options& options);

}  // namespace detail

/// Runs `f(bootstrap&)` as `n` ranks. Each rank is a forked child process with its own copy of `f`
/// and of the whole memory. The exit status of a rank is the value that `f` returns: 0 for void,
/// and 255 for a value outside 0 to 255. A rank whose `f` throws prints a line on stderr and ends
/// with status 1. A rank that returned 0 but cannot write its output also ends with status 1,
/// without that line, unless the descriptor of the output is closed.
/// If a rank throws or dies, the waits of the other ranks end with peer_dead. Ranks that still run
/// after `options.grace` are killed, unless they went on without the rank that died. A death is
/// reported on stderr.
/// Ranks end by `_exit`: destructors of static objects and functions of `atexit` do not run. The
/// counts of a build with --coverage (clang: or with -fprofile-instr-generate) are written
/// nevertheless. No rank outlives the call. If this process is killed, the ranks end too, because
/// they die with the thread that called. The call creates no files.
/// Cost: one fork per rank, and one `bootstrap::allgather`.
/// Returns: the greatest exit status of all ranks. A rank that was killed counts as 128 + signal.
/// Throws: `error` invalid_argument if `n` is 0 or SIGCHLD is ignored; system if not all processes
/// could be started. Those that were started have ended by then.
/// Threads: in the ranks only the calling thread exists. Call this function before other threads
/// start, or make sure that `f` needs no lock that another thread may hold.
template <rank_function F>
[[nodiscard]] int run_local(std::size_t n, F f, run_options options = {}) {
  return detail::run_processes(n, detail::returning_status(f), options);
}

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/local.ipp>  // IWYU pragma: keep
#endif
