// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/carry_out.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator/window.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective {

/// Copies the `data` of rank `root` to the `data` of every other rank. `data` is [count], with the
/// same count on all ranks, which may be 0. Returns when `data` is complete; the root may then
/// change its `data`.
///
/// Algorithm: that of `team::algorithm_of`. R is bytes / `slice_of`, rounded up, at least 1.
///
/// - `one_shot`: the root publishes slices, and all other ranks copy them. R rounds. The root
///   writes each byte once, and puts it to each peer that cannot read it; the others copy each byte
///   once.
/// - `two_levels`: 2 R rounds. The root puts each byte to one rank of each other group of near
///   ranks, which publishes it to its group.
///
/// Data `in_window`, on all ranks, of `team_options::window_bytes` or more is not staged: two
/// rounds, and peers copy each byte from the window.
/// Throws, on all ranks: `error` mismatch, refused or invalid_argument as `team` says, poisoned.
/// Also timed_out, peer_dead and unreachable, which poison the communicator.
template <detail::output_range Data>
void broadcast(team& team, Data&& data, rank_id root, const call_options& options = {}) {
  request asked = detail::request_of(operation_kind::broadcast, data, data);
  asked.root = root;
  detail::carry_out(team, asked, options);
}

/// Does the first half of `broadcast`, with the same arguments. `pending::finish` does the rest.
/// `pending` says what holds between the halves.
template <detail::output_range Data>
  requires detail::lasting_range<Data>
pending start_broadcast(team& team, Data&& data, rank_id root, const call_options& options = {}) {
  request asked = detail::request_of(operation_kind::broadcast, data, data);
  asked.root = root;
  return detail::start(team, asked, options);
}

}  // namespace peerbus::collective
