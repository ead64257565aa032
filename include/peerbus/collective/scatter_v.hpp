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
#include <peerbus/core/rank.hpp>

namespace peerbus::collective {

/// Copies part `r` of the `input` of rank `root` to the `output` of each rank `r`, as `scatter`
/// does with parts of different sizes. At the root, `parts` says where parts lie in `input`, and
/// `parts.counts[r]` is the size of the output of rank `r`. At other ranks `input` and `parts` are
/// not read and may be empty. In place, `output` is the root's part of `input` at the root; the
/// rest of `input` is unchanged. Returns when `output` is complete; the caller may then reuse
/// `input`.
///
/// Algorithm: a round in which ranks compare counts, then as `scatter`.
/// Cost: 1 + ceil(bytes of the longest part / (slice / ranks)) rounds, at least 2. Each byte of
/// `input` is written once, and put to its peer if the peer cannot read it; each byte of `output`
/// is copied once. An input `in_window` is not staged: three rounds, and peers copy each byte from
/// the window.
/// Throws, on all ranks: `error` mismatch, refused or invalid_argument as `team` says, poisoned.
/// Also timed_out, peer_dead and unreachable, which poison the communicator.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output>
void scatter_v(team& team, const Input& input, const part_layout& parts, Output&& output,
               rank_id root, const call_options& options = {}) {
  request asked = detail::request_of(operation_kind::scatter_v, input, output);
  asked.root = root;
  asked.parts = parts;
  detail::carry_out(team, asked, options);
}

/// Does the first half of `scatter_v`, with the same arguments: tells the peers the sizes of its
/// parts. `pending::finish` does the rest. `pending` says what holds between the halves. The arrays
/// of `parts` are not used after this call.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output> && detail::lasting_range<Input> &&
           detail::lasting_range<Output>
pending start_scatter_v(team& team, Input&& input, const part_layout& parts, Output&& output,
                        rank_id root, const call_options& options = {}) {
  request asked = detail::request_of(operation_kind::scatter_v, input, output);
  asked.root = root;
  asked.parts = parts;
  return detail::start(team, asked, options);
}

}  // namespace peerbus::collective
