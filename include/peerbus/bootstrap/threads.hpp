// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/rank_function.hpp>
#include <peerbus/core/compiled.hpp>

namespace peerbus {

namespace detail {

/// Implements `run_threads` for a rank function whose type is erased.
[[nodiscard]] int run_as_threads(std::size_t n, rank_body body);

}  // namespace detail

/// Runs `f(bootstrap&)` as `n` ranks. Each rank is a thread of this process that ends before the
/// call returns. All threads call the same `f` at the same time. A rank whose `f` throws prints a
/// line on stderr and counts as status 1, and the waits of the other ranks end with peer_dead.
/// Cost: one thread per rank.
/// Returns: the greatest status of all ranks. A status outside 0 to 255 counts as 255.
/// Throws: `error` invalid_argument if `n` is 0, system if not all threads could be started.
template <rank_function F>
[[nodiscard]] int run_threads(std::size_t n, F f) {
  return detail::run_as_threads(n, detail::returning_status(f));
}

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/threads.ipp>  // IWYU pragma: keep
#endif
