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

/// Copies the `input` of every rank to its part of the `output` of rank `root`, as `gather` does
/// with inputs of different sizes. At the root, `parts` says where inputs go in `output`, and
/// `parts.counts[r]` is the size of the input of rank `r`. At other ranks `output` and `parts` are
/// not read and may be empty. In place, `input` is the root's part of `output` at the root. Returns
/// when `output` is complete at the root; the caller may then reuse `input`.
///
/// Algorithm: a round in which the root compares counts, then as `gather`.
/// Cost: 1 + ceil(bytes of the longest input / slice) rounds, at least 2. Each byte of `input` is
/// written once, and put to the root if the root cannot read it; the root copies each byte of
/// `output` once. An input `in_window` is not staged: three rounds, and the root copies each byte
/// from the window.
/// Throws, on all ranks: `error` mismatch, refused or invalid_argument as `team` says, poisoned.
/// Also timed_out, peer_dead and unreachable, which poison the communicator.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output>
void gather_v(team& team, const Input& input, Output&& output, const part_layout& parts,
              rank_id root, const call_options& options = {}) {
  request asked = detail::request_of(operation_kind::gather_v, input, output);
  asked.root = root;
  asked.parts = parts;
  detail::carry_out(team, asked, options);
}

/// Does the first half of `gather_v`, with the same arguments: tells the peers the sizes of its
/// parts. `pending::finish` does the rest. `pending` says what holds between the halves. The arrays
/// of `parts` are not used after this call.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output> && detail::lasting_range<Input> &&
           detail::lasting_range<Output>
pending start_gather_v(team& team, Input&& input, Output&& output, const part_layout& parts,
                       rank_id root, const call_options& options = {}) {
  request asked = detail::request_of(operation_kind::gather_v, input, output);
  asked.root = root;
  asked.parts = parts;
  return detail::start(team, asked, options);
}

}  // namespace peerbus::collective
