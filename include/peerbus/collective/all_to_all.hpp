// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/carry_out.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator/window.hpp>

namespace peerbus::collective {

/// Copies row `peer` of the `input` of this rank to row `rank` of the `output` of `peer`, for all
/// pairs of ranks. Both are [ranks, count], with the same count on all ranks, which may be 0. In
/// place, both are the same range. Returns when `output` is complete; the caller may then reuse
/// `input`.
///
/// Algorithm: full mesh. Each rank publishes a part for each peer, in slices.
/// Cost: ceil(bytes of a row / (slice / ranks)) rounds, at least one. Each byte of `input` is
/// written once, and put to its peer if the peer cannot read it; each byte of `output` is copied
/// once. An input `in_window` that is not the output, with rows of `team_options::window_bytes` or
/// more, is not staged: two rounds, and peers copy each byte from the window.
/// Throws, on all ranks: `error` mismatch, refused or invalid_argument as `team` says, poisoned.
/// Also timed_out, peer_dead and unreachable, which poison the communicator.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output>
void all_to_all(team& team, const Input& input, Output&& output, const call_options& options = {}) {
  const request asked = detail::request_of(operation_kind::all_to_all, input, output);
  detail::carry_out(team, asked, options);
}

/// Does the first half of `all_to_all`, with the same arguments. `pending::finish` does the rest.
/// `pending` says what holds between the halves.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output> && detail::lasting_range<Input> &&
           detail::lasting_range<Output>
pending start_all_to_all(team& team, Input&& input, Output&& output,
                         const call_options& options = {}) {
  const request asked = detail::request_of(operation_kind::all_to_all, input, output);
  return detail::start(team, asked, options);
}

}  // namespace peerbus::collective
