// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/carry_out.hpp>
#include <peerbus/collective/detail/element_work.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/part_layout.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator/window.hpp>

namespace peerbus::collective {

/// Reduces part `rank` of the `input` of every rank to the `output` of rank `rank`, as
/// `reduce_scatter` does with parts of different sizes. `parts` says where parts lie in `input`,
/// and `output` is [`parts.counts[rank]`]. Counts must be the same on all ranks; displacements may
/// differ. In place, `output` is this rank's part of `input`, whose parts must not overlap; the
/// rest of `input` is unchanged. Returns when `output` is complete; the caller may then reuse
/// `input`.
///
/// Elements are reduced in the order of ranks, in `accumulator_t`, and rounded once. Equal inputs
/// give equal bits in every run, over every transport.
///
/// Algorithm: a round in which ranks compare counts, then as `reduce_scatter`.
/// Cost: 1 + ceil(bytes of the longest part / (slice / ranks)) rounds, at least 2. Each byte of
/// `input` is written once, and put to its peer if the peer cannot read it; the bytes of a part are
/// read once for each rank. An input `in_window` is not staged: three rounds, and each byte of a
/// part is read in the window.
/// Throws, on all ranks: `error` mismatch, refused or invalid_argument as `team` says, poisoned.
/// Also timed_out, peer_dead and unreachable, which poison the communicator.
template <spannable Input, detail::output_range Output, reduction<detail::element_of<Input>> Op>
  requires detail::same_elements<Input, Output>
void reduce_scatter_v(team& team, const Input& input, const part_layout& parts, Output&& output,
                      const Op& op, const call_options& options = {}) {
  request asked = detail::request_of(operation_kind::reduce_scatter_v, input, output);
  asked.parts = parts;
  detail::carry_out(team, asked, detail::reducer::of<detail::element_of<Input>>(op), options);
}

/// Does the first half of `reduce_scatter_v`, with the same arguments: tells the peers the sizes of
/// its parts. `pending::finish` does the rest. `pending` says what holds between the halves. The
/// arrays of `parts` are not used after this call. `op` is copied, so it must be trivially copyable
/// and no larger than 64 bytes.
template <spannable Input, detail::output_range Output,
          detail::kept_reduction<detail::element_of<Input>> Op>
  requires detail::same_elements<Input, Output> && detail::lasting_range<Input> &&
           detail::lasting_range<Output>
pending start_reduce_scatter_v(team& team, Input&& input, const part_layout& parts, Output&& output,
                               const Op& op, const call_options& options = {}) {
  request asked = detail::request_of(operation_kind::reduce_scatter_v, input, output);
  asked.parts = parts;
  return detail::start(team, asked, detail::kept_work::reduction_of<detail::element_of<Input>>(op),
                       options);
}

}  // namespace peerbus::collective
