// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/carry_out.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/part_layout.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator/window.hpp>

namespace peerbus::collective {

/// Copies the `input` of every rank to its part of the `output` of every rank, as `all_gather` does
/// with inputs of different sizes. `input` is [`parts.counts[rank]`]. `parts` says where inputs go
/// in `output`. Counts must be the same on all ranks; displacements may differ. In place, `input`
/// is this rank's part of `output`. Returns when `output` is complete; the caller may then reuse
/// `input`.
///
/// Algorithm: a round in which ranks compare counts, then as `all_gather`.
/// Cost: 1 + ceil(bytes of the longest input / slice) rounds, at least 2. Each byte of `input` is
/// written once, and put to each peer that cannot read it; each byte of `output` is copied once.
/// An input `in_window` is not staged: three rounds, and peers copy each byte from the window.
/// Throws, on all ranks: `error` mismatch, refused or invalid_argument as `team` says, poisoned.
/// Also timed_out, peer_dead and unreachable, which poison the communicator.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output>
void all_gather_v(team& team, const Input& input, Output&& output, const part_layout& parts,
                  const call_options& options = {}) {
  request asked = detail::request_of(operation_kind::all_gather_v, input, output);
  asked.parts = parts;
  detail::carry_out(team, asked, options);
}

/// Does the first half of `all_gather_v`, with the same arguments: tells the peers the sizes of its
/// parts. `pending::finish` does the rest. `pending` says what holds between the halves. The arrays
/// of `parts` are not used after this call.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output> && detail::lasting_range<Input> &&
           detail::lasting_range<Output>
pending start_all_gather_v(team& team, Input&& input, Output&& output, const part_layout& parts,
                           const call_options& options = {}) {
  request asked = detail::request_of(operation_kind::all_gather_v, input, output);
  asked.parts = parts;
  return detail::start(team, asked, options);
}

}  // namespace peerbus::collective
