// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/carry_out.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator/window.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective {

/// Copies the `input` of every rank to the `output` of rank `root`, in the order of ranks. `input`
/// is [count], with the same count on all ranks, which may be 0. `output` is [ranks, count] at the
/// root, and is not touched at other ranks, where it may be empty. In place, `input` is row `root`
/// of `output` at the root. Returns when `output` is complete at the root; the caller may then
/// reuse `input`.
///
/// Algorithm: all ranks publish slices, and the root copies them.
/// Cost: ceil(bytes of `input` / slice) rounds, at least one. Each byte of `input` is written once,
/// and put to the root if the root cannot read it; the root copies each byte of `output` once. An
/// input `in_window` of `team_options::window_bytes` or more is not staged: two rounds, and the
/// root copies each byte from the window.
/// Throws, on all ranks: `error` mismatch, refused or invalid_argument as `team` says, poisoned.
/// Also timed_out, peer_dead and unreachable, which poison the communicator.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output>
void gather(team& team, const Input& input, Output&& output, rank_id root,
            const call_options& options = {}) {
  request asked = detail::request_of(operation_kind::gather, input, output);
  asked.root = root;
  detail::carry_out(team, asked, options);
}

/// Does the first half of `gather`, with the same arguments. `pending::finish` does the rest.
/// `pending` says what holds between the halves.
template <spannable Input, detail::output_range Output>
  requires detail::same_elements<Input, Output> && detail::lasting_range<Input> &&
           detail::lasting_range<Output>
pending start_gather(team& team, Input&& input, Output&& output, rank_id root,
                     const call_options& options = {}) {
  request asked = detail::request_of(operation_kind::gather, input, output);
  asked.root = root;
  return detail::start(team, asked, options);
}

}  // namespace peerbus::collective
