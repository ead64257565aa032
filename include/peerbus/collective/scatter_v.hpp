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
#include <peerbus/core/rank.hpp>

namespace peerbus::collective {

namespace detail {
/// Begins `scatter_v` for elements of any type.
operation scatter_v_bytes(team& on, const operands& given, const part_layout& parts, rank_id root,
                          const call_options& options);
}  // namespace detail

/// Copies part `r` of the `input` of rank `root` to the `output` of each rank `r`, as `scatter`
/// does with parts of different sizes. `parts` says at the root where parts lie in `input`, and
/// `parts.counts[r]` is the size of the output of rank `r`. At other ranks `input` and `parts` are
/// not looked at and may be empty. In place, `output` is the root's part of `input` at the root;
/// the rest of `input` stays as it is. Returns when `output` is complete; the caller may then reuse
/// `input`.
///
/// Algorithm: a round in which ranks compare counts, then as `scatter`. Cost: 1 + ceil(bytes of the
/// longest part / (slice / ranks)) rounds, at least 2. Each byte of `input` is written once, and
/// put to its peer if that cannot read it; each byte of `output` is copied once. An input
/// `in_window` is not staged: three rounds, and peers copy each byte from where it lies. Throws, on
/// all ranks: `error` mismatch, refused or invalid_argument as `team` says, poisoned. Also
/// timed_out, peer_dead and unreachable, which poison the communicator.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output>
void scatter_v(team& on, const Input& input, const part_layout& parts, Output&& output,
               rank_id root, const call_options& options = {}) {
  const detail::operands given = detail::operands_of(input, output);
  detail::by_lanes(on, "scatter_v", options,
                   [&] { detail::scatter_v_bytes(on, given, parts, root, options).run(given); });
}

/// Does the first half of `scatter_v`, with the same arguments: tells the peers the sizes of its
/// parts. `pending::finish` does the rest. `pending` says what holds between the halves. The arrays
/// of `parts` are not used after this call.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output> && detail::lasting_range<Input> &&
           detail::lasting_range<Output>
pending start_scatter_v(team& on, Input&& input, const part_layout& parts, Output&& output,
                        rank_id root, const call_options& options = {}) {
  const detail::operands given = detail::operands_of(input, output);
  return {detail::scatter_v_bytes(on, given, parts, root, options), given};
}

}  // namespace peerbus::collective

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/scatter_v.ipp>  // IWYU pragma: keep
#endif
