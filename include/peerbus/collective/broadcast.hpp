// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/by_lanes.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/operation.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator/window.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective {

namespace detail {
/// Begins `broadcast` for elements of any type. The output is the data, and the input at the root
/// too.
operation broadcast_bytes(team& on, const operands& given, rank_id root,
                          const call_options& options);
}  // namespace detail

/// Copies the `data` of rank `root` to that of every other rank. `data` is [count], with the same
/// count on all ranks, which may be 0. Returns when `data` is complete; the root may change its own
/// then.
///
/// Algorithm: that of `team::algorithm_of`. R is bytes / `slice_of`, rounded up, at least 1.
///
/// - `one_shot`: the root publishes slices, and all others copy them. R rounds. The root writes
///   each byte once, and puts it to each peer that cannot read it; the others copy each byte once.
/// - `two_levels`: 2 R rounds. The root puts each byte to one rank of each other group of near
///   ranks, which publishes it to its group.
///
/// Data `in_window`, on all ranks, of `team_options::window_bytes` or more is not staged: two
/// rounds, and peers copy each byte from where it lies.
/// Throws, on all ranks: `error` mismatch, refused or invalid_argument as `team` says, poisoned.
/// Also timed_out, peer_dead and unreachable, which poison the communicator.
template <detail::output_range Data>
void broadcast(team& on, Data&& data, rank_id root, const call_options& options = {}) {
  const detail::operands given = detail::operands_of(data, data);
  detail::by_lanes(on, "broadcast", options,
                   [&] { detail::broadcast_bytes(on, given, root, options).run(given); });
}

/// Does the first half of `broadcast`, with the same arguments. `pending::finish` does the rest.
/// `pending` says what holds between the halves.
template <detail::output_range Data>
  requires detail::lasting_range<Data>
pending start_broadcast(team& on, Data&& data, rank_id root, const call_options& options = {}) {
  const detail::operands given = detail::operands_of(data, data);
  return {detail::broadcast_bytes(on, given, root, options), given};
}

}  // namespace peerbus::collective

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/broadcast.ipp>  // IWYU pragma: keep
#endif
