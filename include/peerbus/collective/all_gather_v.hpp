// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/by_lanes.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/operation.hpp>
#include <peerbus/collective/part_layout.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator/window.hpp>

namespace peerbus::collective {

namespace detail {
/// Begins `all_gather_v` for elements of any type.
operation all_gather_v_bytes(team& on, const operands& given, const part_layout& parts,
                             const call_options& options);
}  // namespace detail

/// Copies the `input` of every rank to its part of the `output` of every rank, as `all_gather` does
/// with inputs of different sizes. `input` is [`parts.counts[rank]`]. `parts` says where inputs go
/// in `output`. Counts are the same on all ranks, displacements need not be. In place, `input` is
/// this rank's part of `output`. Returns when `output` is complete; the caller may then reuse
/// `input`.
///
/// Algorithm: a round in which ranks compare counts, then as `all_gather`. Cost: 1 + ceil(bytes of
/// the longest input / slice) rounds, at least 2. Each byte of `input` is written once, and put to
/// each peer that cannot read it; each byte of `output` is copied once.
/// An input `in_window` is not staged: three rounds, and peers copy each byte from where it lies.
/// Throws, on all ranks: `error` mismatch, refused or invalid_argument as `team` says, poisoned.
/// Also timed_out, peer_dead and unreachable, which poison the communicator.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output>
void all_gather_v(team& on, const Input& input, Output&& output, const part_layout& parts,
                  const call_options& options = {}) {
  const detail::operands given = detail::operands_of(input, output);
  detail::by_lanes(on, "all_gather_v", options,
                   [&] { detail::all_gather_v_bytes(on, given, parts, options).run(given); });
}

/// Does the first half of `all_gather_v`, with the same arguments: tells the peers the sizes of its
/// parts. `pending::finish` does the rest. `pending` says what holds between the halves. The arrays
/// of `parts` are not used after this call.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output> && detail::lasting_range<Input> &&
           detail::lasting_range<Output>
pending start_all_gather_v(team& on, Input&& input, Output&& output, const part_layout& parts,
                           const call_options& options = {}) {
  const detail::operands given = detail::operands_of(input, output);
  return {detail::all_gather_v_bytes(on, given, parts, options), given};
}

}  // namespace peerbus::collective

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/all_gather_v.ipp>  // IWYU pragma: keep
#endif
