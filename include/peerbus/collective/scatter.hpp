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

/// Copies row `rank` of the `input` of rank `root` to the `output` of rank `rank`. `input` is
/// [ranks, count] at the root, and is not read at other ranks, where it may be empty. `output` is
/// [count], with the same count on all ranks, which may be 0. In place, `output` is row `root` of
/// `input` at the root. Returns when `output` is complete; the root may then reuse `input`.
///
/// Algorithm: the root publishes a part for each peer, in slices.
/// Cost: ceil(bytes of `output` / (slice / ranks)) rounds, at least one. The root writes each byte
/// of `input` once, and puts it to its peer if the peer cannot read it; each byte of `output` is
/// copied once. An input `in_window`, on all ranks, with rows of `team_options::window_bytes` or
/// more, is not staged: two rounds, and peers copy each byte from the window. Ranks other than the
/// root may give an empty range of the window.
/// Throws, on all ranks: `error` mismatch, refused or invalid_argument as `team` says, poisoned.
/// Also timed_out, peer_dead and unreachable, which poison the communicator.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output>
void scatter(team& team, const Input& input, Output&& output, rank_id root,
             const call_options& options = {}) {
  request asked = detail::request_of(operation_kind::scatter, input, output);
  asked.root = root;
  detail::carry_out(team, asked, options);
}

/// Does the first half of `scatter`, with the same arguments. `pending::finish` does the rest.
/// `pending` says what holds between the halves.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output> && detail::lasting_range<Input> &&
           detail::lasting_range<Output>
pending start_scatter(team& team, Input&& input, Output&& output, rank_id root,
                      const call_options& options = {}) {
  request asked = detail::request_of(operation_kind::scatter, input, output);
  asked.root = root;
  return detail::start(team, asked, options);
}

}  // namespace peerbus::collective
