// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/carry_out.hpp>
#include <peerbus/collective/detail/element_work.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator/window.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective {

/// Reduces the `input` of all ranks, element by element, to the `output` of rank `root`. `input` is
/// [count], with the same count on all ranks, which may be 0. `output` is [count] at the root, and
/// is not touched at other ranks, where it may be empty. In place, both are the same range. Returns
/// when `output` is complete at the root; the caller may then reuse `input`.
///
/// Elements are reduced as in `all_reduce`, with the same result.
///
/// Algorithm: all ranks publish slices, and the root reduces them.
/// Cost: ceil(bytes / slice) rounds, at least one. Each byte is written once, and put to the root
/// if the root cannot read it; the root reads each byte of all ranks once. An input `in_window` of
/// `team_options::window_bytes` or more is not staged: two rounds, and the root reads each byte in
/// the window.
/// Throws, on all ranks: `error` mismatch, refused or invalid_argument as `team` says, poisoned.
/// Also timed_out, peer_dead and unreachable, which poison the communicator.
template <spannable Input, detail::output_range Output, reduction<detail::element_of<Input>> Op>
  requires detail::same_elements<Input, Output>
void reduce(team& team, const Input& input, Output&& output, const Op& op, rank_id root,
            const call_options& options = {}) {
  request asked = detail::request_of(operation_kind::reduce, input, output);
  asked.root = root;
  detail::carry_out(team, asked, detail::reducer::of<detail::element_of<Input>>(op), options);
}

/// Does the first half of `reduce`, with the same arguments. `pending::finish` does the rest.
/// `pending` says what holds between the halves. `op` is copied, so it must be trivially copyable
/// and no larger than 64 bytes.
template <spannable Input, detail::output_range Output,
          detail::kept_reduction<detail::element_of<Input>> Op>
  requires detail::same_elements<Input, Output> && detail::lasting_range<Input> &&
           detail::lasting_range<Output>
pending start_reduce(team& team, Input&& input, Output&& output, const Op& op, rank_id root,
                     const call_options& options = {}) {
  request asked = detail::request_of(operation_kind::reduce, input, output);
  asked.root = root;
  return detail::start(team, asked, detail::kept_work::reduction_of<detail::element_of<Input>>(op),
                       options);
}

}  // namespace peerbus::collective
