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

/// Copies the `input` of every rank to the `output` of every rank, in the order of ranks. `input`
/// is [count] and `output` is [ranks, count], with the same count on all ranks, which may be 0. In
/// place, `input` is row `rank` of `output`. Returns when `output` is complete; the caller may then
/// reuse `input`.
///
/// Algorithm: that of `team::algorithm_of`, in slices through the scratch memory. R is the bytes of
/// `input` / `slice_of`, rounded up, at least 1.
///
/// - `one_shot`: full mesh. Each rank publishes a slice, and its peers copy it from there. R
///   rounds.
///   Each byte of `input` is written once, and put to each peer that cannot read it; each byte of
///   `output` is copied once.
/// - `doubling`: the inputs of 1, 2, 4 and more ranks go from rank to rank. R ceil(log2 n) steps
///   with one message each. As many bytes are put; each byte of `output` is copied twice.
/// - `two_levels`: 2 R rounds. Each byte of `input` is put once to each other group of near ranks.
///
/// An input `in_window` of `team_options::window_bytes` or more is not staged: two rounds, and
/// peers copy each byte from the window.
/// Throws, on all ranks: `error` mismatch, refused or invalid_argument as `team` says, poisoned.
/// Also timed_out, peer_dead and unreachable, which poison the communicator.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output>
void all_gather(team& team, const Input& input, Output&& output, const call_options& options = {}) {
  const request asked = detail::request_of(operation_kind::all_gather, input, output);
  detail::carry_out(team, asked, options);
}

/// Does the first half of `all_gather`, with the same arguments. `pending::finish` does the rest.
/// `pending` says what holds between the halves.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output> && detail::lasting_range<Input> &&
           detail::lasting_range<Output>
pending start_all_gather(team& team, Input&& input, Output&& output,
                         const call_options& options = {}) {
  const request asked = detail::request_of(operation_kind::all_gather, input, output);
  return detail::start(team, asked, options);
}

}  // namespace peerbus::collective
