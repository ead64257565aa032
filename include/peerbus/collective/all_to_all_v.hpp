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

/// Copies part `peer` of the `input` of this rank to part `rank` of the `output` of `peer`, for all
/// pairs of ranks, as `all_to_all` does with parts of different sizes. `sent` says where parts lie
/// in `input`, and `received` where they go in `output`. `sent.counts[peer]` must equal
/// `received.counts[rank]` at `peer`. In place, both operands are the same range, with equal counts
/// and displacements. Returns when `output` is complete; the caller may then reuse `input`.
///
/// Algorithm: a round in which ranks compare counts, then as `all_to_all`.
/// Cost: 1 + ceil(bytes of the longest part of all ranks / (slice / ranks)) rounds, at least 2.
/// Each byte of `input` is written once, and put to its peer if the peer cannot read it; each byte
/// of `output` is copied once. An input `in_window` that is not the output is not staged: three
/// rounds, and peers copy each byte from the window.
/// Throws, on all ranks: `error` mismatch, refused or invalid_argument as `team` says, poisoned.
/// Also timed_out, peer_dead and unreachable, which poison the communicator.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output>
void all_to_all_v(team& team, const Input& input, const part_layout& sent, Output&& output,
                  const part_layout& received, const call_options& options = {}) {
  request asked = detail::request_of(operation_kind::all_to_all_v, input, output);
  asked.parts = sent;
  asked.received_parts = received;
  detail::carry_out(team, asked, options);
}

/// Does the first half of `all_to_all_v`, with the same arguments: tells the peers the sizes of its
/// parts. `pending::finish` does the rest. `pending` says what holds between the halves. The arrays
/// of `sent` and `received` are not used after this call.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output> && detail::lasting_range<Input> &&
           detail::lasting_range<Output>
pending start_all_to_all_v(team& team, Input&& input, const part_layout& sent, Output&& output,
                           const part_layout& received, const call_options& options = {}) {
  request asked = detail::request_of(operation_kind::all_to_all_v, input, output);
  asked.parts = sent;
  asked.received_parts = received;
  return detail::start(team, asked, options);
}

}  // namespace peerbus::collective
